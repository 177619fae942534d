"""The pytest hooks, and nothing else. All state lives in one object under a stash key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_kvoffload.options import MARK_LINE, add_options

if TYPE_CHECKING:
    pass


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options and ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark and read the options, so that a bad one ends the run before anything is collected."""
    config.addinivalue_line("markers", MARK_LINE)
