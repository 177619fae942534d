"""Quantiles of histograms, as Prometheus computes them, and what they can carry.

``quantile`` follows ``bucketQuantile`` of Prometheus (promql/quantile.go, classic histograms): the value is
interpolated, so that it looks exact and is not. Beside it stand the bounds of the bucket that holds the true quantile.
The true quantile is the order statistic: the smallest observation with at least ``q * n`` observations at or below it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

SMALL_DELTA_TOLERANCE = 1e-12
"""Relative difference of neighbouring cumulative counts that Prometheus takes for rounding noise."""

Buckets: TypeAlias = Sequence[tuple[float, float]]
"""Upper bound (``le``) and cumulative count, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Observations in cumulative buckets, sorted by upper bound."""

    name: str
    buckets: tuple[tuple[float, float], ...]
    count: float
    sum: float

    @property
    def mean(self) -> float | None:
        """Mean of the observations, exact; ``None`` without any."""
        return self.sum / self.count if self.count > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramQuantile:
    """A quantile read from buckets: Prometheus' number, and where the truth lies.

    ``value`` is NaN when there is nothing to read. The truth lies in ``(lower, upper]``; ``upper`` is infinite when the
    quantile falls beyond the last finite bucket, where ``value`` is that bucket's bound and thus too small.
    """

    q: float
    value: float
    lower: float
    upper: float
    count: float

    @property
    def capped(self) -> bool:
        """Whether the truth lies beyond the last finite bucket, so that ``value`` understates it."""
        return math.isinf(self.upper) and not math.isnan(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Answer to "is this quantile at or below the bound?"; ``unknown`` when the buckets or the count cannot tell."""

    verdict: Literal["holds", "fails", "unknown"]
    reason: str


def bucket_quantile(q: float, buckets: Buckets) -> float:
    """Return exactly what ``histogram_quantile`` returns for these classic buckets.

    Linear interpolation inside the bucket, from zero in the lowest one; the bound of the lowest bucket itself where
    that is not positive; the second-highest bound where the quantile falls into ``+Inf``; NaN without observations,
    with fewer than two buckets, or without a ``+Inf`` bucket; minus and plus infinity for ``q`` below 0 and above 1.
    """
    if math.isnan(q):
        return math.nan
    if q < 0:
        return -math.inf
    if q > 1:
        return math.inf
    clean = repaired(buckets)
    if len(clean) < 2 or clean[-1][0] != math.inf or clean[-1][1] == 0 or math.isnan(clean[-1][1]):
        return math.nan
    index = _bucket_index(q, clean)
    upper, count = clean[index]
    if index == len(clean) - 1:
        return clean[index - 1][0]
    if index == 0 and upper <= 0:
        return upper
    rank = q * clean[-1][1]
    start = 0.0
    if index > 0:
        start = clean[index - 1][0]
        count -= clean[index - 1][1]
        rank -= clean[index - 1][1]
    if count == 0:
        # Go divides zero by zero here (q = 0 and an empty lowest bucket).
        return math.nan
    return start + (upper - start) * (rank / count)


def quantile(histogram: Histogram, q: float) -> HistogramQuantile:
    """Read a quantile and the bounds between which the truth lies.

    Args:
        histogram: the observations.
        q: in [0, 1].

    Returns:
        The quantile. ``lower`` of the lowest bucket is 0 where its bound is positive (durations and sizes are never
        negative), minus infinity otherwise. All NaN without observations.

    Raises:
        ValueError: ``q`` is not in [0, 1].
    """
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile lies in [0, 1], not {q}")
    value = bucket_quantile(q, histogram.buckets)
    clean = repaired(histogram.buckets)
    if not clean or clean[-1][0] != math.inf or not clean[-1][1] > 0:
        return HistogramQuantile(q=q, value=math.nan, lower=math.nan, upper=math.nan, count=histogram.count)
    index = _bucket_index(q, clean)
    if q == 0:
        # The smallest observation lies in the first bucket that holds one; an empty bucket has count 0 >= rank 0.
        index = next(i for i, (_, count) in enumerate(clean) if count > 0)
    upper = clean[index][0]
    if index > 0:
        lower = clean[index - 1][0]
    else:
        lower = 0.0 if upper > 0 else -math.inf
    return HistogramQuantile(q=q, value=value, lower=lower, upper=upper, count=clean[-1][1])


def minimum_count(q: float) -> int:
    """Return how many observations a quantile needs so that at least one may lie beyond it: 100 for p99, 2 for p50."""
    if not 0 <= q < 1:
        raise ValueError(f"needs a quantile in [0, 1), not {q}")
    return math.ceil(round(1 / (1 - q), 6))


def claim_below(histogram: Histogram, q: float, bound: float) -> Claim:
    """Say whether the quantile is at or below a bound, only where the data can carry the answer.

    Args:
        histogram: the observations.
        q: in [0, 1).
        bound: in the histogram's unit.

    Returns:
        ``holds`` when the whole bucket of the true quantile lies at or below the bound, ``fails`` when it lies above,
        ``unknown`` when the bound falls inside the bucket or the observations are too few for the quantile.
    """
    found = quantile(histogram, q)
    name = f"p{q * 100:g}"
    if math.isnan(found.lower) or found.count <= 0:
        return Claim(verdict="unknown", reason=f"{histogram.name} has no observations")
    needed = minimum_count(q)
    if found.count < needed:
        return Claim(
            verdict="unknown",
            reason=f"{found.count:g} observations of {histogram.name} cannot carry a {name}: it needs {needed}",
        )
    where = f"the {name} of {histogram.name} lies in ({found.lower:g}, {found.upper:g}]"
    if found.upper <= bound:
        return Claim(verdict="holds", reason=f"{where}, at or below {bound:g}")
    if found.lower >= bound:
        return Claim(verdict="fails", reason=f"{where}, above {bound:g}")
    return Claim(verdict="unknown", reason=f"{where}: whether that is at or below {bound:g}, no bucket bound tells")


def repaired(buckets: Buckets) -> list[tuple[float, float]]:
    """Return buckets sorted, equal bounds merged, and counts made to rise, as Prometheus does before it interpolates.

    ``coalesceBuckets`` and ``ensureMonotonicAndIgnoreSmallDeltas`` of promql/quantile.go: a count within a relative
    1e-12 of its predecessor is set to it (float sums over engines), and so is a count below it.
    """
    merged: dict[float, float] = {}
    for bound, count in buckets:
        if not math.isnan(bound):
            merged[bound] = merged.get(bound, 0.0) + count
    clean: list[tuple[float, float]] = []
    for bound in sorted(merged):
        count = merged[bound]
        if clean and (count < clean[-1][1] or _almost_equal(clean[-1][1], count)):
            count = clean[-1][1]
        clean.append((bound, count))
    return clean


def _bucket_index(q: float, clean: Sequence[tuple[float, float]]) -> int:
    rank = q * clean[-1][1]
    for index, (_, count) in enumerate(clean[:-1]):
        if count >= rank:
            return index
    return len(clean) - 1


def _almost_equal(a: float, b: float) -> bool:
    """``almost.Equal`` of Prometheus (util/almost) with the tolerance above."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    smallest = sys.float_info.min
    size = abs(a) + abs(b)
    if a == 0 or b == 0 or size < smallest:
        return abs(a - b) < SMALL_DELTA_TOLERANCE * smallest
    return abs(a - b) / min(size, sys.float_info.max) < SMALL_DELTA_TOLERANCE
