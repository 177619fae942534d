"""The sample quantile, its exact interval, and how many samples it takes to speak of it at all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_kvoffload.stats._checks import exact, finite_list, probability, require


def quantile(samples: Iterable[float], q: float) -> float:
    """Return the sample quantile: the order statistic ``x_(ceil(n q))``, 1-based.

    This is the inverse of the empirical distribution function, type 1 of Hyndman and Fan (1996), "Sample quantiles
    in statistical packages", The American Statistician 50(4): always a value that was observed, never an
    interpolation between two modes of a hit/miss mixture. ``q = 0`` gives the minimum.

    Args:
        samples: finite numbers, any order, any unit.
        q: in [0, 1].

    Raises:
        ValueError: no samples, a sample that is NaN or infinite, or ``q`` out of range.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q is {q}: a quantile must lie between 0 and 1")
    ordered = sorted(finite_list(samples, "samples"))
    return ordered[max(math.ceil(len(ordered) * exact(q)), 1) - 1]


def smallest_n(q: float, confidence: float | None = None) -> int:
    """Return the smallest number of samples that can carry the quantile ``q``.

    Without ``confidence``: the smallest n whose sample quantile is not merely the sample's extreme, which is
    ``ceil(1 / min(q, 1 - q))``: 2 for p50, 20 for p95, 100 for p99, 1000 for p99.9. Below it the "p99" is the slowest
    request under another name.

    With ``confidence``: the smallest n at which a distribution-free one-sided bound for the quantile exists at that
    confidence. The best bound there is is the sample's extreme, which lies beyond the quantile with probability
    ``1 - max(q, 1 - q)**n``; hence ``ceil(log(1 - confidence) / log(max(q, 1 - q)))``: 59 for p95 and 299 for p99 at
    0.95 (Wilks 1941, "Determination of sample sizes for setting tolerance limits"). The two-sided interval of
    :func:`quantile_interval` spends half of the error on each side: ask for ``(1 + confidence) / 2``.

    Args:
        q: strictly between 0 and 1.
        confidence: strictly between 0 and 1, or ``None`` for the point estimate.

    Raises:
        ValueError: ``q`` or ``confidence`` out of range.
    """
    probability(q, "q")
    near = min(exact(q), 1 - exact(q))
    if confidence is None:
        return math.ceil(1 / near)
    probability(confidence, "confidence")
    far, miss = 1 - near, 1 - exact(confidence)
    n = max(math.floor(math.log(miss) / math.log(far)) - 1, 1)
    # The logarithm only brings us near; the integer itself is decided without rounding.
    while far**n > miss:
        n += 1
    return n


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileInterval:
    """A sample quantile with its distribution-free interval."""

    q: float
    value: float
    """The sample quantile, as :func:`quantile` defines it."""
    low: float | None
    """Lower bound, ``None`` when n samples cannot carry one at this confidence."""
    high: float | None
    """Upper bound, ``None`` when n samples cannot carry one at this confidence."""
    confidence: float
    """The confidence that was asked for; the coverage is at least this."""
    n: int
    needed_n: int
    """The smallest n at which both bounds exist."""

    @property
    def complete(self) -> bool:
        """Whether both bounds exist."""
        return self.low is not None and self.high is not None


def quantile_interval(samples: Iterable[float], q: float, confidence: float = 0.95) -> QuantileInterval:
    """Return the sample quantile with its exact, equal-tailed order-statistic interval.

    With ``B`` binomial(n, q): the lower bound is ``x_(r)`` for the largest r with ``P(B <= r - 1) <= a / 2``, the upper
    one ``x_(s)`` for the smallest s with ``P(B >= s) <= a / 2``, where ``a = 1 - confidence``. No distribution is
    assumed; ties and coarse clocks only raise the coverage (David and Nagaraja, "Order Statistics", 3rd ed., section
    7.1). The samples must be independent: the interval knows nothing of drift or of boots.

    Args:
        samples: finite numbers, any order, any unit.
        q: strictly between 0 and 1.
        confidence: strictly between 0 and 1.

    Raises:
        ValueError: no samples, a sample that is NaN or infinite, or ``q`` or ``confidence`` out of range.
        MissingExtraError: scipy is not installed.
    """
    probability(q, "q")
    probability(confidence, "confidence")
    ordered = sorted(finite_list(samples, "samples"))
    binom = require("scipy.stats", "the interval of a quantile").binom
    n, tail = len(ordered), float((1 - exact(confidence)) / 2)
    # ppf gives the smallest k with P(B <= k) >= p; each bound is then settled on its own side of that k.
    r = int(binom.ppf(tail, n, q))
    if binom.cdf(r, n, q) <= tail:
        r += 1
    s = int(binom.isf(tail, n, q)) + 1
    return QuantileInterval(
        q=q,
        value=quantile(ordered, q),
        low=ordered[r - 1] if r >= 1 else None,
        high=ordered[s - 1] if s <= n else None,
        confidence=confidence,
        n=n,
        needed_n=smallest_n(q, 1 - tail),
    )
