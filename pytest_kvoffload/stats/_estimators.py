"""Estimators of how much slower a tail became, with their sampling variance. Needs numpy: imported lazily only.

Everything works on logarithms of seconds, so a difference is a ratio. ``reference`` and ``candidate`` are arrays in
request order; with ``paired`` element i of both is the same request replayed, and what the two share cancels in the
variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Ranked: TypeAlias = tuple[FloatArray, FloatArray]

_VALLEY_WIDTH = 0.25
"""Width of the window that looks for an empty stretch between two modes: a factor of 1.28."""
_VALLEY_DEPTH = 0.15
"""A valley holds at most this share of the fullest window above it; falling densities never do."""
_VALLEY_PEAK = 6
"""A mode is a window with at least this many of the pooled values."""
_MANY_MORE = 2.5
"""Standard errors by which the arms' numbers of slow requests may differ before they count as different."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One estimate of the log ratio of two tails."""

    log_ratio: float
    variance: float
    """Sampling variance of ``log_ratio`` from request to request; drift and boots come on top."""
    tail_n: int
    """Number of values per arm that carry it (the smaller arm)."""
    units: float
    """As how many independent values they count: fewer than ``tail_n`` where slow requests come in bursts."""
    informative: int
    """Number of independent units (pairs, or requests when unpaired) that have a value in the tail set."""
    method: str


def window(n: int, low: float, high: float) -> tuple[int, int]:
    """Return the ranks ``[start, stop)`` of the order statistics between two quantiles, at least one of them."""
    start = int(np.floor(low * n + 1e-9))
    stop = int(np.ceil(high * n - 1e-9))
    return min(start, n - 1), max(stop, min(start, n - 1) + 1)


def rank_window(
    reference: FloatArray, candidate: FloatArray, low: float, high: float, paired: bool, ranked: Ranked | None = None
) -> Estimate:
    """Compare the mean log of the order statistics between the quantiles ``low`` and ``high`` of each arm.

    A trimmed L-estimator of the log ratio of the quantiles in the window. Each arm chooses its own tail set by rank,
    so the choice favours neither arm, whether the same requests are slow in both arms or others. The variance is that
    of the influence function of a trimmed mean (Huber and Ronchetti, "Robust Statistics", 2nd ed., section 3.3),
    evaluated at the common thresholds of the pooled sample after the candidate was divided by the estimated ratio:
    aligned, both arms lend their values to the density at the threshold. Pairs are differenced before squaring.

    ``ranked`` holds both arms sorted, for callers that ask for several windows.
    """
    ranked_r, ranked_c = ranked or (np.sort(reference), np.sort(candidate))
    start_r, stop_r = window(len(reference), low, high)
    start_c, stop_c = window(len(candidate), low, high)
    log_ratio = float(ranked_c[start_c:stop_c].mean() - ranked_r[start_r:stop_r].mean())
    aligned = candidate - log_ratio
    start, stop = start_r + start_c, stop_r + stop_c
    pooled = np.partition(np.concatenate([reference, aligned]), (start, stop - 1))
    floor, ceiling = pooled[start], pooled[stop - 1]
    scale = len(pooled) / (stop - start)
    influence_r = np.clip(reference, floor, ceiling) * scale
    influence_c = np.clip(aligned, floor, ceiling) * scale
    in_r = (reference > floor) & (reference <= ceiling)
    in_c = (aligned > floor) & (aligned <= ceiling)
    variance, bursts = _variance(influence_r, influence_c, paired)
    constant = paired and variance < 1e-24 and bool(np.allclose(candidate, reference + log_ratio, rtol=0.0, atol=1e-9))
    tail_n = min(stop_r - start_r, stop_c - start_c)
    return Estimate(
        log_ratio=log_ratio,
        # The mean of the tail set was estimated from tail_n values, as in the usual n - 1.
        variance=variance * tail_n / max(tail_n - 1, 1),
        tail_n=tail_n,
        units=tail_n / bursts,
        # One and the same ratio in all pairs: then all of them speak, not only those in the window.
        informative=len(reference) if constant else _informative(in_r, in_c, paired),
        method=f"order statistics from quantile {low:.4g} to {high:.4g}",
    )


def find_valley(reference: FloatArray, candidate: FloatArray, low: float, high: float) -> float | None:
    """Return a log value in an empty stretch between two modes, between two quantiles of the pooled sample.

    Hits and misses of a cache make a tail that is a mode of its own. The search sees the pooled sample only, so it
    cannot favour an arm. ``None`` when the density merely falls.
    """
    pooled = np.sort(np.concatenate([reference, candidate]))
    start = max(int(np.floor(len(pooled) * low)), 0)
    stop = min(int(np.ceil(len(pooled) * high)), len(pooled) - 1)
    if stop - start < 2:
        return None
    cuts = (pooled[start:stop] + pooled[start + 1 : stop + 1]) / 2
    at_cut = _crowd(pooled, cuts)
    peaks = np.maximum.accumulate(_crowd(pooled, pooled[start + 1 :])[::-1])[::-1][: len(cuts)]
    depth = at_cut / np.maximum(peaks, 1)
    gaps = pooled[start + 1 : stop + 1] - pooled[start:stop]
    best = int(np.lexsort((-gaps, depth))[0])
    if depth[best] > _VALLEY_DEPTH or peaks[best] < _VALLEY_PEAK:
        return None
    return float(cuts[best])


def upper_mode(
    reference: FloatArray, candidate: FloatArray, valley: float, paired: bool
) -> tuple[Estimate | None, bool]:
    """Compare the mean logs of what lies above the valley in each arm; also tell whether as many requests do.

    The whole mode is the tail set: it ends in an empty stretch, so no value stands at a border where noise decides.
    Means are taken arm by arm, so a request may be slow in one arm only. No estimate when either arm has fewer than
    four values there.
    """
    above_r, above_c = reference > valley, candidate > valley
    count_r, count_c = int(above_r.sum()), int(above_c.sum())
    if paired:
        spread = int((above_r != above_c).sum())
    else:
        # Counts of independent arms: binomial, compared at equal size.
        spread = count_r + count_c
    share_gap = abs(count_c / len(candidate) - count_r / len(reference)) * min(len(reference), len(candidate))
    alike = bool(share_gap <= _MANY_MORE * np.sqrt(max(spread, 1)))
    fewest = min(count_r, count_c)
    if fewest < 4:
        return None, alike
    mean_r, mean_c = float(reference[above_r].mean()), float(candidate[above_c].mean())
    influence_r = np.where(above_r, (reference - mean_r) * (len(reference) / count_r), 0.0)
    influence_c = np.where(above_c, (candidate - mean_c) * (len(candidate) / count_c), 0.0)
    variance, bursts = _variance(influence_r, influence_c, paired)
    estimate = Estimate(
        log_ratio=mean_c - mean_r,
        variance=variance * fewest / (fewest - 1),
        tail_n=fewest,
        units=fewest / bursts,
        informative=_informative(above_r, above_c, paired),
        method="mode of slow requests, apart from the others",
    )
    return estimate, alike


def _crowd(ordered: FloatArray, centres: FloatArray) -> FloatArray:
    low = np.searchsorted(ordered, centres - _VALLEY_WIDTH / 2)
    high = np.searchsorted(ordered, centres + _VALLEY_WIDTH / 2)
    return (high - low).astype(np.float64)


def _variance(influence_r: FloatArray, influence_c: FloatArray, paired: bool) -> tuple[float, float]:
    """Return the variance of the mean influence, and by what factor neighbours' dependence raised it.

    Slow requests come in bursts when one stall holds up several: then a burst is one observation and not many. The
    factor is one plus twice the sum of the autocorrelations with Bartlett's weights up to lag n**(1/3) (Newey and West
    1987, "A simple, positive semi-definite, heteroskedasticity and autocorrelation consistent covariance matrix",
    Econometrica 55(3)), and never below one.
    """
    if min(len(influence_r), len(influence_c)) < 2:
        return float("inf"), 1.0
    plain = whole = 0.0
    for series in (influence_c - influence_r,) if paired else (influence_r, influence_c):
        centred = series - series.mean()
        n, power = len(centred), float(centred @ centred)
        variance = power / (n - 1) / n
        plain += variance
        whole += variance * _burst_factor(centred, power)
    return whole, whole / plain if plain > 0.0 else 1.0


def _burst_factor(centred: FloatArray, power: float) -> float:
    if not power > 0.0:
        return 1.0
    lags = round(len(centred) ** (1 / 3))
    weighted = sum((1.0 - lag / (lags + 1)) * float(centred[:-lag] @ centred[lag:]) for lag in range(1, lags + 1))
    return float(max(1.0, 1.0 + 2.0 * weighted / power))


def _informative(in_r: NDArray[np.bool_], in_c: NDArray[np.bool_], paired: bool) -> int:
    return int((in_r | in_c).sum()) if paired else int(in_r.sum() + in_c.sum())
