"""How long lookups, stores and loads took, as far as the server's metrics tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_kvoffload.metrics import query
from pytest_kvoffload.metrics.meters import SCHEDULER, Meters
from pytest_kvoffload.metrics.quantiles import quantile
from pytest_kvoffload.metrics.readings import HistogramReading, histogram
from pytest_kvoffload.output.report.arms import ReportArm
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.output.rows import phase_meters
from pytest_kvoffload.records import Delta

LMCACHE = {
    "lmcache:time_to_lookup": "LMCache lookup",
    "lmcache:time_to_store": "LMCache store",
    "lmcache:time_to_retrieve": "LMCache load",
    "lmcache:remote_time_to_get": "LMCache remote get",
    "lmcache:remote_time_to_put": "LMCache remote put",
    "vllm:lmcache_mp_lookup_duration_seconds": "LMCache lookup",
}
"""Histograms of LMCache in seconds, except the remote ones (milliseconds)."""
_MILLISECONDS = ("lmcache:remote_",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """One kind of work in one phase of one arm. Seconds; ``None`` is "not told"."""

    arm: str
    phase: str
    what: str
    count: float | None
    total_seconds: float
    p50: tuple[float, float] | None = None
    """Bounds of the bucket that holds it."""
    p99: tuple[float, float] | None = None
    bytes_per_second: float | None = None

    @property
    def mean_seconds(self) -> float | None:
        """Total over count; ``None`` without a count or with none."""
        return self.total_seconds / self.count if self.count else None


def delays(arms: Sequence[ReportArm]) -> list[Delay]:
    """Return what took time, phase by phase; what never happened in a phase is left out."""
    return [delay for arm in arms for phase in arm.phase_names for delay in _of_phase(arm, phase)]


def _of_phase(arm: ReportArm, phase: str) -> Iterator[Delay]:
    pieces = [p for _, p in arm.pieces(phase)]
    meters = phase_meters(arm.first, *pieces)
    name = one_line(phase, 40)
    for how, found in (("", meters.lookup_sync), (", asynchronous", meters.lookup_async)):
        for tier, reading in found.items():
            place = "" if tier == SCHEDULER else f" in {one_line(tier, 20)}"
            yield from _histogram(arm.name, name, f"lookup{place}{how}", reading)
    yield from _transfers(arm.name, name, meters, [p.delta for p in pieces])
    for metric, what in LMCACHE.items():
        readings = [histogram(p.delta, metric, arm.first.server.vllm_version) for p in pieces]
        scale = 1e-3 if metric.startswith(_MILLISECONDS) else 1.0
        for reading in readings:
            yield from _histogram(arm.name, name, what, reading, scale=scale)


def _histogram(arm: str, phase: str, what: str, reading: HistogramReading, *, scale: float = 1.0) -> Iterator[Delay]:
    found = reading.histogram
    if found is None or not found.count:
        return
    bounds = []
    for q in (0.5, 0.99):
        part = quantile(found, q)
        known = math.isfinite(part.lower) and math.isfinite(part.upper)
        bounds.append((part.lower * scale, part.upper * scale) if known else None)
    yield Delay(
        arm=arm,
        phase=phase,
        what=what,
        count=found.count,
        total_seconds=found.sum * scale,
        p50=bounds[0],
        p99=bounds[1],
    )


def _transfers(arm: str, phase: str, meters: Meters, deltas: Sequence[Delta]) -> Iterator[Delay]:
    for what, seconds, rate in (
        ("store", meters.store_seconds, meters.store_bandwidth),
        ("load", meters.load_seconds, meters.load_bandwidth),
    ):
        if not seconds.value:
            continue
        # Each transfer is one observation of its size; the time is a plain counter.
        counts = [query.total(delta, f"vllm:kv_offload_{what}_size_count") for delta in deltas]
        known = [count for count in counts if count is not None]
        yield Delay(
            arm=arm,
            phase=phase,
            what=what,
            count=sum(known) if known else None,
            total_seconds=seconds.value,
            bytes_per_second=rate.value,
        )
    for tier, moved in meters.tiers.items():
        for what, seconds, rate in (
            ("write", moved.write_seconds, moved.write_bandwidth),
            ("read", moved.read_seconds, moved.read_bandwidth),
        ):
            if seconds.value:
                yield Delay(
                    arm=arm,
                    phase=phase,
                    what=f"{what} {one_line(tier, 20)}",
                    count=None,
                    total_seconds=seconds.value,
                    bytes_per_second=rate.value,
                )
