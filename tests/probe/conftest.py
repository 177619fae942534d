from __future__ import annotations

import pytest

import pytest_kvoffload.probe.cache as cache


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake settles at once: look at it more often than at a real server."""
    monkeypatch.setattr(cache, "POLL_SECONDS", 0.02)
