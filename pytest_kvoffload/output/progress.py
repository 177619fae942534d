"""Progress of what takes long: one living line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.output.rows import format_seconds
from pytest_kvoffload.output.wrap import clean

if TYPE_CHECKING:
    from pytest_kvoffload.gate.pace import Place
    from pytest_kvoffload.probe import Progress

QUIET_SECONDS = 30.0
"""Where stderr is no terminal: at most one line in this time."""


def one_line(text: str) -> str:
    """Make a line of a server's log fit for a terminal: no escape sequence, no control character, no line break."""
    return " ".join(clean(text).split())


def phase_text(progress: Progress, *, width: int | None = None, place: Place | None = None) -> str:
    """Say in one line how far a phase has come; where ``width`` columns are too few, in fewer words.

    ``place`` is where the phase stands in a run of several arms; it says which arm that is.
    """
    rate, hits, ttft = progress.requests_per_second, progress.hit_rate, progress.ttft_p50_seconds
    count = f"{progress.phase}: {progress.done}/{progress.total}"
    hit_rate = [] if hits is None else [f"hit rate {hits:.2f}"]
    p50 = [] if ttft is None else [f"TTFT p50 {format_seconds(ttft)}"]
    speed = [] if rate is None else [f"{rate:.3g}/s"]
    if place is None:
        head = f"{progress.arm} {count}".strip()
        forms = [[f"{head} requests", *speed, *hit_rate, *p50], [head, *speed, *hit_rate, *p50]]
        forms += [[head, *hit_rate, *p50], [head]]
    else:
        long, short = f"{place_text(place)}, {count}", place_text(place, short=True)
        forms = [[long, *speed, *hit_rate, *p50], [long, *p50], [long], [short, count], [short]]
    texts = [", ".join(form) for form in forms]
    return next((text for text in texts if width is None or len(text) <= width), texts[-1])


def place_text(place: Place, *, short: bool = False) -> str:
    """Say which block of which arm is measured, how many requests that arm has answered, and how long it may take."""
    known = place.blocks is not None
    if place.block is None:
        block = "warm-up"
    else:
        block = f"block {place.block}" + ("/" if short else " of ") * known + str(place.blocks) * known
    if short:
        return " ".join([block, place.arm, *([f"{place.done}/{place.requests}"] if known else [])])
    words = [block, place.arm]
    if known:
        words.append(f"{place.done} of {place.requests} requests")
    if place.seconds_left is not None:
        left = place.seconds_left
        words.append(f"at most {left:.0f} s left" if left < 90 else f"at most {left / 60:.0f} min left")
    return ", ".join(words)


class CommandProgress:
    """Says what takes long. Use as a context manager, so that the living line never outlives the command."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._live: Any = None
        self._spinner: Any = None
        self._place: Place | None = None
        self._last = float("-inf")

    def __enter__(self) -> CommandProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def line(self, text: str) -> None:
        """Say what is going on."""
        if not self._enabled:
            return
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._living(one_line(text))
        elif time.monotonic() - self._last >= QUIET_SECONDS:
            self._last = time.monotonic()
            print(f"  {one_line(text)}", file=sys.stderr, flush=True)

    def phase(self, progress: Progress) -> None:
        """Say how far a phase has come."""
        width = None if self._live is None else self._live.console.width - 2
        self.line(phase_text(progress, width=width, place=self._place))

    def at(self, place: Place) -> None:
        """Say where a run of several arms is; phases are told with it from now on."""
        self._place = place
        self.line(place_text(place))

    def clear(self) -> None:
        """Take the living line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _living(self, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        if self._live is None:
            self._spinner = Spinner("dots")
            self._live = Live(self._row(text), console=Console(stderr=True), transient=True, refresh_per_second=8)
            self._live.start()
        else:
            self._live.update(self._row(text))

    def _row(self, text: str) -> Any:
        """One row of a grid: only a table's column cuts a text that is too long for the terminal."""
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1))
        row.add_column(width=1)
        row.add_column()
        row.add_row(self._spinner, Text(text, no_wrap=True, overflow="ellipsis"))
        return row
