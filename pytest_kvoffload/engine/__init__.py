"""Engines: booting, attaching, watching and ending a server under test."""

from pytest_kvoffload.engine.attachment import attach
from pytest_kvoffload.engine.connectors import KINDS, LaunchParts, connector_argv, validate_connector
from pytest_kvoffload.engine.launch import boot
from pytest_kvoffload.engine.server import RunningServer

__all__ = ["KINDS", "LaunchParts", "RunningServer", "attach", "boot", "connector_argv", "validate_connector"]
