"""How the latencies of both arms are spread: counts over shared steps of a logarithmic scale, small enough to keep."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

BINS = 48
_SMALLEST_SECONDS = 1e-6
_LEAST_SPAN = 1.05
"""Ratio of the scale's ends where all times are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Requests of both arms by TTFT. Element i counts the requests between edges i and i + 1, in seconds."""

    phase: str
    edges_seconds: tuple[float, ...]
    reference: tuple[int, ...]
    candidate: tuple[int, ...]
    reference_p50_seconds: float
    candidate_p50_seconds: float


def spread_of(reference: Sequence[float], candidate: Sequence[float], *, phase: str) -> Spread | None:
    """Return how the times (seconds) of two arms are spread; ``None`` where an arm has none."""
    from pytest_kvoffload.stats import quantile

    if not reference or not candidate:
        return None
    times = [max(value, _SMALLEST_SECONDS) for value in (*reference, *candidate)]
    low, high = min(times), max(times)
    if high / low < _LEAST_SPAN:
        low, high = low / math.sqrt(_LEAST_SPAN), high * math.sqrt(_LEAST_SPAN)
    step = math.log(high / low) / BINS
    edges = tuple(low * math.exp(step * i) for i in range(BINS + 1))
    return Spread(
        phase=phase,
        edges_seconds=edges,
        reference=_counts(reference, edges),
        candidate=_counts(candidate, edges),
        reference_p50_seconds=quantile(reference, 0.5),
        candidate_p50_seconds=quantile(candidate, 0.5),
    )


def _counts(times: Sequence[float], edges: Sequence[float]) -> tuple[int, ...]:
    counts = [0] * BINS
    for value in times:
        counts[min(max(bisect_right(edges, value) - 1, 0), BINS - 1)] += 1
    return tuple(counts)
