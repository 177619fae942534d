"""Is the candidate's latency tail worse than the reference's by more than a margin? The gate's front door.

The question is asked of a quantile (p99) of two samples, with an answer of three values. How it is decided:

1. *Estimate.* The log ratio of the tails around the quantile, from the order statistics of each arm
   (:func:`~pytest_kvoffload.stats._estimators.rank_window`): for p99 the slowest 2 to 7 %, since p99 alone would rest
   on three values of 300. Where the slow requests form a mode apart (misses of a cache) and both arms have about as
   many, that mode is the tail set. Either choice looks at both arms alike.
2. *Variance.* From request to request by the influence function, on differences of pairs when the same requests were
   replayed; raised where slow requests come in bursts; plus what drift, blocks and boots add
   (:mod:`~pytest_kvoffload.stats._slow`), 1 % at least. No distribution is assumed of the latencies; Student's t with
   as many degrees of freedom as there are independent pairs with a value in the tail set (requests when unpaired) less
   two, mixed by Satterthwaite, stands for the few values of a small tail set.
3. *Nested tail sets.* Nobody knows where a change begins, so the slowest 2 %, 3 %, 4 % and 7 % (for p99) are all
   tested. The 2 %, right at the quantile, must at least lean towards "worse" before a larger set counts, so that a
   change below the quantile does not pass for a change of it; they may decide alone as well. The 7 % may decide only
   where the 4 % already have p <= 5 alpha: they are the more precise where all of the tail moved. The smallest
   weighted p-value counts. The sets overlap, so their p-values move together and the weights (:data:`_WEIGHTS`) add
   up to more than one; that the level holds is shown by the simulation. Where the tail is a mode apart there are two
   sets only, the mode and the 2 %, and the weights add up to one.

The error rates are measured, not claimed: docs/gate-error-rates.md has the table and benchmarks/gate_simulation.py
makes it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pytest_kvoffload.stats._checks import exact, positive_list, probability, require
from pytest_kvoffload.stats.quantiles import smallest_n
from pytest_kvoffload.stats.result import TailDecision, TailResult, explained

if TYPE_CHECKING:
    from pytest_kvoffload.stats._estimators import Estimate, FloatArray
    from pytest_kvoffload.stats._slow import SlowNoise

Labels: TypeAlias = Sequence[Hashable]

_WIDTHS = (2.0, 3.0, 4.0, 7.0)
"""Widths of the tail sets, in multiples of what lies beyond the quantile; the third is the main one."""
_WEIGHTS = (0.09, 0.40, 0.72, 0.36)
"""Weights of their p-values: p / weight is compared with alpha."""
_MODE_WEIGHTS = (0.10, 0.90)
"""The same where the tail is a mode apart: the slowest by rank, and the mode."""
_LEAN = 50.0
"""The others count at level a only where the narrow set has p <= 50 a: at 1 %, where its ratio is past the margin."""
_NEAR = 5.0
"""The widest set counts at level a only where the main one has p <= 5 a."""
_ROUNDING = 1e-12
"""What the logarithm of a ratio may be off by."""
_WIDEST = 0.045
"""How far the main set reaches from the quantile at most, as a share of the requests: p50 is asked about the middle."""


def tail_regression(
    reference: Iterable[float],
    candidate: Iterable[float],
    *,
    quantile: float = 0.99,
    margin: float = 0.10,
    alpha: float = 0.01,
    paired: bool = True,
    blocks: Labels | tuple[Labels, Labels] | None = None,
    boots: Labels | tuple[Labels, Labels] | None = None,
    confidence: float = 0.95,
) -> TailResult:
    """Decide whether the candidate's tail is slower than the reference's by more than the margin.

    Args:
        reference: latencies in seconds, above zero, in request order. Failed requests have no latency: an arm that
            has some is not comparable, and NaN is refused here.
        candidate: the same of the candidate; with ``paired``, element i is the same request replayed.
        quantile: which tail, such as 0.99.
        margin: how much slower is still accepted: 0.10 is 10 %.
        alpha: error rate of "worse", one-sided, when the candidate's tail is slower by the margin or less.
        paired: whether element i of both arms is the same request. Arms of unequal length cannot be paired.
        blocks: label of the interleaved block of each request, or a pair of label sequences, one per arm.
        boots: label of the server's boot that answered each request, or a pair of label sequences, one per arm. With
            one boot in an arm its effect cannot be told from the change: a standard deviation of 3 % is assumed then.
            Without labels, stretches of the request order show boots that alternate, but never that of a single boot.
        confidence: of the two-sided interval of the ratio, and so of ``not_worse``.

    Returns:
        The decision with its evidence. ``p_value <= alpha`` and ``decision == "worse"`` are the same statement.

    Raises:
        ValueError: a latency that is NaN, infinite, zero or negative; no latencies; paired arms or labels of unequal
            length; an argument out of range. The message names it.
        MissingExtraError: numpy or scipy is not installed.
    """
    probability(quantile, "quantile")
    probability(alpha, "alpha")
    probability(confidence, "confidence")
    if not (math.isfinite(margin) and margin >= 0.0):
        raise ValueError(f"margin is {margin}: it must be a finite share of at least 0 (0.10 is 10 %)")
    np = require("numpy", "the tail test")
    special = require("scipy.special", "the tail test")
    before, after = _positive(np, reference, "reference"), _positive(np, candidate, "candidate")
    if paired and len(before) != len(after):
        raise ValueError(
            f"reference has {len(before)} requests and candidate has {len(after)}: paired arms must hold the same"
            " requests in the same order (paired=False compares different requests)"
        )
    cuts = [_label_pair(labels, name, before, after) for labels, name in ((blocks, "blocks"), (boots, "boots"))]

    bound = math.log1p(margin)
    logs = np.log(before), np.log(after)
    n = min(len(before), len(after))
    slow = _slow(*logs, paired, cuts)
    sets, main = _tail_sets(*logs, quantile, paired)
    p_sets = [_p(tail_set, slow, bound, special) for tail_set in sets]
    lean = p_sets[0] / _LEAN
    if main is sets[-1]:
        weighted = [p_sets[0] / _MODE_WEIGHTS[0], max(p_sets[-1], lean) / _MODE_WEIGHTS[1]]
    else:
        near = p_sets[2] / _NEAR
        floors = (0.0, lean, lean, max(lean, near))
        weighted = [max(p, floor) / weight for p, floor, weight in zip(p_sets, floors, _WEIGHTS, strict=True)]
    smallest = min(weighted)
    strongest = sets[weighted.index(smallest)]
    # A ratio within the margin is no evidence at all, at whatever alpha.
    p_value = min(1.0, smallest) if strongest.log_ratio > bound + _ROUNDING else 1.0
    # The ratio that is shown is that of the main set, unless only another one decides.
    narrow, main_p = sets[0], weighted[sets.index(main)]
    shown = strongest if p_value <= alpha and (alpha < main_p or main.log_ratio <= bound + _ROUNDING) else main
    low, high = _interval(shown, slow, confidence, special)
    needed: int | None = None
    fewest = smallest_n(quantile)
    if n < fewest:
        p_value, low, high, needed = 1.0, 0.0, math.inf, fewest
    decision: TailDecision = "inconclusive"
    if p_value <= alpha:
        decision = "worse"
    elif high < 1.0 + margin and narrow.log_ratio < bound:
        decision = "not_worse"
    elif n >= fewest:
        needed = _needed(shown, slow, bound, n, alpha, confidence, special)
    result = TailResult(
        decision=decision,
        p_value=p_value,
        ratio=math.exp(shown.log_ratio),
        ratio_low=low,
        ratio_high=high,
        n=n,
        quantile=quantile,
        margin=margin,
        alpha=alpha,
        confidence=confidence,
        reference_quantile=_sample_quantile(np, before, quantile),
        candidate_quantile=_sample_quantile(np, after, quantile),
        tail_n=shown.tail_n,
        tail_units=shown.units,
        slow_sd=math.sqrt(slow.variance),
        needed_n=needed,
        method=("paired" if paired else "unpaired") + f" tail ratio, {shown.method}",
        explanation="",
    )
    return explained(result, assumed_boot=slow.assumed)


def _positive(np: Any, samples: Iterable[float], name: str) -> FloatArray:
    """Return the latencies as an array; the refusal of a bad one is worded by ``positive_list``."""
    values = np.asarray(samples if hasattr(samples, "__array__") else [*samples], dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} has the shape {values.shape}: one latency a request is needed")
    if values.size == 0 or not bool(np.all(np.isfinite(values) & (values > 0.0))):
        positive_list(values, name)
    return cast("FloatArray", values)


def _sample_quantile(np: Any, values: FloatArray, q: float) -> float:
    rank = max(math.ceil(len(values) * exact(q)), 1) - 1
    return float(np.partition(values, rank)[rank])


def _tail_sets(
    reference: FloatArray, candidate: FloatArray, q: float, paired: bool
) -> tuple[tuple[Estimate, ...], Estimate]:
    """Return the estimates from all tail sets, narrowest first, and the main one of them.

    The main one is the last where the tail is a mode apart, and the third otherwise.
    """
    import numpy as np

    from pytest_kvoffload.stats import _estimators as estimators

    beyond = 1.0 - q
    ranked = (np.sort(reference), np.sort(candidate))
    narrow = estimators.rank_window(reference, candidate, *_reach(q, _WIDTHS[0]), paired, ranked)
    # Two modes are looked for after the change at the quantile is taken off: a tail twice as slow is no second mode.
    aligned = candidate - narrow.log_ratio
    valley = estimators.find_valley(reference, aligned, max(1.0 - 8.0 * beyond, 0.75), 1.0 - 1.5 * beyond)
    if valley is not None:
        mode, alike = estimators.upper_mode(reference, aligned, valley, paired)
        if not alike:
            # One arm has more slow requests, not (only) slower ones: how far that moves the quantile shows at the
            # quantile alone.
            return (narrow, narrow), narrow
        if mode is not None:
            shifted = replace(mode, log_ratio=mode.log_ratio + narrow.log_ratio)
            return (narrow, shifted), shifted
    wider = [estimators.rank_window(reference, candidate, *_reach(q, width), paired, ranked) for width in _WIDTHS[1:]]
    return (narrow, *wider), wider[1]


def _reach(q: float, width: float) -> tuple[float, float]:
    """Return the quantiles between which a tail set lies: up to the maximum, or around a quantile of the middle."""
    reach = _WIDEST * width / _WIDTHS[2]
    low = max(1.0 - width * (1.0 - q), q - reach, 0.0)
    return low, 1.0 if q + _WIDEST >= 1.0 else min(q + reach, 1.0)


def _slow(
    reference: FloatArray, candidate: FloatArray, paired: bool, cuts: list[tuple[Labels, Labels] | None]
) -> SlowNoise:
    from pytest_kvoffload.stats import _slow as slow

    known = [cut for cut in cuts if cut is not None]
    if paired:
        noise = slow.slow_noise(candidate - reference, [list(zip(*cut, strict=True)) for cut in known])
    else:
        noise = slow.add(
            slow.slow_noise(reference, [cut[0] for cut in known]),
            slow.slow_noise(candidate, [cut[1] for cut in known]),
        )
    boots = cuts[1]
    if boots is not None:
        single = sum(map(slow.single_boot, boots))
        if single:
            noise = slow.add(noise, slow.assumed_boot(single))
    return slow.at_least(noise)


def _label_pair(
    labels: Labels | tuple[Labels, Labels] | None, name: str, reference: FloatArray, candidate: FloatArray
) -> tuple[Labels, Labels] | None:
    if labels is None:
        return None
    listed = [*labels]
    if len(listed) == 2 and all(hasattr(item, "__len__") and not isinstance(item, str | bytes) for item in listed):
        pair = cast("tuple[Labels, Labels]", (listed[0], listed[1]))
    else:
        pair = (listed, listed)
    for arm, own, samples in (("reference", pair[0], reference), ("candidate", pair[1], candidate)):
        if len(own) != len(samples):
            raise ValueError(
                f"{name} has {len(own)} labels for the {len(samples)} requests of {arm}: one each is needed"
            )
    return pair


def _degrees(estimate: Estimate) -> float:
    """Return the degrees of freedom of the variance from request to request: what it was estimated from, less the two
    arms' means."""
    return max(estimate.informative * estimate.units / estimate.tail_n - 2.0, 1.0)


def _spread(estimate: Estimate, slow: SlowNoise) -> tuple[float, float]:
    """Return the standard error of an estimate and its degrees of freedom (Satterthwaite 1946)."""
    inner = _degrees(estimate)
    variance = estimate.variance + slow.variance
    share = estimate.variance**2 / inner + slow.variance**2 / slow.degrees
    return math.sqrt(variance), min(variance**2 / share, 1e9) if share > 0.0 else inner


def _p(estimate: Estimate, slow: SlowNoise, bound: float, special: Any) -> float:
    error, degrees = _spread(estimate, slow)
    p = float(special.stdtr(degrees, (bound - estimate.log_ratio) / error))
    if not estimate.variance > 0.0:
        # No scatter at all: a clock so coarse, or arms so alike, that all pairs of the tail agree. That is no proof
        # of precision, so a sign test of as many units bounds the p-value from below.
        sign = 0.5 ** min(estimate.informative, 1000) if estimate.log_ratio > bound + _ROUNDING else 1.0
        return max(p, sign)
    return p


def _interval(estimate: Estimate, slow: SlowNoise, confidence: float, special: Any) -> tuple[float, float]:
    error, degrees = _spread(estimate, slow)
    half = -float(special.stdtrit(degrees, (1.0 - confidence) / 2.0)) * error
    return math.exp(estimate.log_ratio - half), _exp(estimate.log_ratio + half)


def _exp(logarithm: float) -> float:
    """Return the exponential, infinite beyond what a float holds: a bound that is no bound."""
    try:
        return math.exp(logarithm)
    except OverflowError:
        return math.inf


def _needed(
    estimate: Estimate, slow: SlowNoise, bound: float, n: int, alpha: float, confidence: float, special: Any
) -> int | None:
    """Return the n at which the present estimate would decide: the error shrinks with n, slow noise does not."""
    distance = abs(estimate.log_ratio - bound)
    level = alpha * _WEIGHTS[2] if estimate.log_ratio > bound else (1.0 - confidence) / 2.0
    room = (distance / float(special.stdtrit(_degrees(estimate), level))) ** 2 - slow.variance
    if not room > 0.0:
        return None
    needed = max(math.ceil(n * estimate.variance / room), n + 1)
    return needed if needed <= 1000 * n else None
