"""Connector kinds: what each named connector of the configuration means to a launch.

A kind is one entry of :data:`KINDS`: a name, the options it knows, and a function from options to
:class:`LaunchParts` (transfer configuration, arguments, environment, helper processes, ways to clear the tier).
"""

from pytest_kvoffload.engine.connectors.argv import connector_argv, validate_connector
from pytest_kvoffload.engine.connectors.cpu_platform import HOST_SPEC, SPEC_MODULE, TIERING_SPEC, inside_dir
from pytest_kvoffload.engine.connectors.interface import ConnectorKind, HelperSpec, LaunchContext, LaunchParts
from pytest_kvoffload.engine.connectors.registry import KINDS, find_kind

__all__ = [
    "HOST_SPEC",
    "KINDS",
    "SPEC_MODULE",
    "TIERING_SPEC",
    "ConnectorKind",
    "HelperSpec",
    "LaunchContext",
    "LaunchParts",
    "connector_argv",
    "find_kind",
    "inside_dir",
    "validate_connector",
]
