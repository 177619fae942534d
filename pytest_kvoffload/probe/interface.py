"""What a measurement needs of its surroundings, and how it ends early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pytest_kvoffload.errors import ServerDiedError
from pytest_kvoffload.records import Measurement, ServerInfo


class Server(Protocol):
    """What a measurement needs of a server: one that was booted, or one that was attached to."""

    @property
    def info(self) -> ServerInfo:
        """What the server says about itself."""

    def check(self) -> None:
        """Raise ServerDiedError when the server is gone; return at once otherwise."""


class Disturbance(Protocol):
    """Something that is done to the server's surroundings while a phase runs: a fault."""

    def begin(self, phase: str) -> tuple[str, ...]:
        """Called before the phase's first request, its caches being prepared. Returns notes for the phase."""

    def end(self, phase: str) -> tuple[str, ...]:
        """Called after the phase's last request, and also when the phase is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a phase has come. ``hit_rate`` is cached over prompt tokens, ``None`` where it is not reported."""

    phase: str
    done: int
    total: int
    hit_rate: float | None
    ttft_p50_seconds: float | None
    requests_per_second: float | None = None
    """Requests done over the time since the phase began; ``None`` before the first."""
    arm: str = ""


ProgressCallback = Callable[[Progress], None]
RestartCallback = Callable[[], Server]


class MeasurementInterrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement. ``partial`` holds what was measured until then (``complete`` is false)."""

    def __init__(self, partial: Measurement) -> None:
        super().__init__(f"interrupted while measuring {partial.arm!r}")
        self.partial = partial


class MeasurementDiedError(ServerDiedError):
    """The server died during a measurement. ``partial`` holds what was measured until then."""

    def __init__(self, message: str, partial: Measurement) -> None:
        super().__init__(message)
        self.partial = partial
