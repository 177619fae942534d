"""How far a run of several arms has come, and how long it may still take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run is: one arm is about to replay one block."""

    arm: str
    block: int | None
    """From 1; ``None`` is a warm-up, which is not counted."""
    blocks: int | None = None
    """At most; ``None`` while the first block has not shown how many requests a block has."""
    done: int = 0
    """Requests of the judged phase that this arm has answered."""
    requests: int | None = None
    """Of that phase per arm, at most."""
    seconds_left: float | None = None
    """At most, at the pace so far; ``None`` while nothing tells."""


Watch: TypeAlias = Callable[[Place], None]


class Pace:
    """Times boots and turns (one arm replays one block), and says how long those that are left would take.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, list[float]] = {"turns": [], "boots": []}
        self._expected: dict[str, int] = {}

    def expect(self, *, turns: int, boots: int) -> None:
        """Say how many there are at most in the whole run; those that were are among them."""
        self._expected = {"turns": turns, "boots": boots}

    @contextmanager
    def boot(self) -> Iterator[None]:
        """Time a boot, or the warm-up after it; one that fails is not counted."""
        with self._timed("boots"):
            yield

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Time a turn; one that fails is not counted."""
        with self._timed("turns"):
            yield

    @property
    def seconds_left(self) -> float | None:
        """How long what is left takes at most; ``None`` before the first turn has ended or any is expected."""
        if not self._seen["turns"] or not self._expected:
            return None
        left = {kind: max(0, self._expected[kind] - len(seen)) for kind, seen in self._seen.items()}
        return sum(left[kind] * statistics.median(seen) for kind, seen in self._seen.items() if seen)

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        since = self._clock()
        yield
        self._seen[kind].append(self._clock() - since)
