"""Progress of a command on stderr: one living line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.output.rows import phase_text

if TYPE_CHECKING:
    from pytest_kvoffload.probe import Progress

QUIET_SECONDS = 30.0
"""Where stderr is no terminal: at most one line in this time."""


class CommandProgress:
    """Says what takes long. Use as a context manager, so that the living line never outlives the command."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._status: Any = None
        self._last = float("-inf")

    def __enter__(self) -> CommandProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def line(self, text: str) -> None:
        """Say what is going on."""
        if not self._enabled:
            return
        if sys.stderr.isatty():
            self._living(text)
        elif time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            print(f"  {text}", file=sys.stderr, flush=True)

    def phase(self, progress: Progress) -> None:
        """Say how far a phase has come."""
        self.line(phase_text(progress))

    def clear(self) -> None:
        """Take the living line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _living(self, text: str) -> None:
        from rich.console import Console
        from rich.text import Text

        shown = Text(text, overflow="ellipsis", no_wrap=True)
        if self._status is None:
            self._status = Console(stderr=True).status(shown)
            self._status.start()
        else:
            self._status.update(shown)
