"""Thresholds against what was measured: each gives one finding.

A latency is judged by a test, so that a threshold is failed only with an error of at most alpha and kept only with the
confidence asked for; between the two it is inconclusive. All tests of one look are one family: Holm's procedure keeps
the chance that any innocent threshold fails at alpha. Keeping needs no such care: the verdict passes only if *every*
threshold is kept, and the chance of that by mistake is that of a single one at most.

What is counted rather than timed (hit rates, failed requests, preemptions) is judged as it stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_kvoffload.errors import IncomparableError, MissingExtraError
from pytest_kvoffload.gate.readings import counted
from pytest_kvoffload.gate.samples import Block, PairedTimes, latencies, paired_times
from pytest_kvoffload.gate.thresholds import Threshold
from pytest_kvoffload.gate.verdict import Finding, Outcome
from pytest_kvoffload.stats import TailResult, holm_adjusted, quantile, smallest_n, tail_regression

_DECISIONS: dict[str, Outcome] = {"worse": "fail", "not_worse": "pass", "inconclusive": "inconclusive"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What a look may spend: the error of a failure, and the confidence of a pass."""

    alpha: float
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The blocks of every arm, and why an arm cannot be compared with the candidate."""

    arms: Mapping[str, Sequence[Block]]
    """By name: ``candidate``, ``reference`` and the connectors that gains are over."""
    broken: Mapping[str, str] = dataclasses.field(default_factory=dict)


def evaluate(thresholds: Sequence[Threshold], evidence: Evidence, *, level: Level) -> tuple[Finding, ...]:
    """Judge the candidate by each threshold, in order.

    Raises:
        MissingExtraError: numpy or scipy is not installed.
    """
    return held_back([_judge(threshold, evidence, level) for threshold in thresholds], alpha=level.alpha)


def held_back(findings: Sequence[Finding], *, alpha: float) -> tuple[Finding, ...]:
    """Return the findings of one family; a failure that does not stand among its family is inconclusive (Holm)."""
    p_values = {place: finding.p_value for place, finding in enumerate(findings) if finding.p_value is not None}
    adjusted = holm_adjusted(p_values)
    found = []
    for place, finding in enumerate(findings):
        if place in adjusted and finding.outcome == "fail" and adjusted[place] > alpha:
            text = (
                f"{finding.text}; held back: among {len(p_values)} tests its p counts as {adjusted[place]:.2g}, "
                f"above {alpha:.2g} (Holm)"
            )
            finding = dataclasses.replace(finding, outcome="inconclusive", text=text)
        found.append(finding)
    return tuple(found)


def _judge(threshold: Threshold, evidence: Evidence, level: Level) -> Finding:
    against = threshold.against
    if against is not None and against in evidence.broken:
        return _unknown(threshold, f"no comparison with {against}: {evidence.broken[against]}")
    if against is not None and not evidence.arms.get(against):
        return _unknown(threshold, f"no arm {against} was measured in this run")
    for name in ("candidate", against):
        for block in evidence.arms[name] if name else ():
            if threshold.phase not in block.measurement.phase_names:
                there = ", ".join(block.measurement.phase_names) or "none"
                return _unknown(threshold, f"{name} has no phase {threshold.phase!r} (there is {there})")
    try:
        if threshold.quantile is None:
            return _counted(threshold, evidence)
        if threshold.kind == "absolute":
            return _absolute(threshold, evidence, level)
        return _relative(threshold, evidence, level)
    except IncomparableError as error:
        return _unknown(threshold, str(error))


def _absolute(threshold: Threshold, evidence: Evidence, level: Level) -> Finding:
    """Judge a quantile against a bound by counting what lies beyond it.

    With n independent requests and X of them beyond the bound, X is binomial. Were the quantile q at the bound, X
    would be binomial(n, 1 - q): many beyond it refute that the quantile keeps it, few refute that it does not.
    (The one-sided sign test; its inversion is the order-statistic interval of the quantile.)
    """
    q = threshold.quantile or 0.0
    values = latencies(evidence.arms["candidate"], phase=threshold.phase, metric=threshold.metric)
    n, value = len(values), quantile(values, q)
    beyond = sum(v > threshold.bound for v in values)
    binom = _binom()
    p_bad, p_good = float(binom.sf(beyond - 1, n, 1.0 - q)), float(binom.cdf(beyond, n, 1.0 - q))
    seen = f"{threshold.label} {value * 1000:.4g} ms, n = {n}, {beyond} beyond {threshold.bound * 1000:.4g} ms"
    outcome: Outcome
    if p_bad <= level.alpha:
        outcome, text = "fail", f"{seen}: too many (p = {p_bad:.2g})"
    elif p_good <= 1.0 - level.confidence:
        outcome, text = "pass", f"{seen}: the quantile keeps the bound with {1.0 - p_good:.1%} confidence"
    else:
        needed = smallest_n(q, level.confidence)
        hint = f"; {needed} requests are needed even when none is beyond it" if n < needed else ""
        outcome, text = "inconclusive", f"{seen}: {n} requests cannot tell{hint}"
    return Finding(
        name=threshold.text, outcome=outcome, text=text, value=value, unit=threshold.dimension, p_value=p_bad
    )


def _relative(threshold: Threshold, evidence: Evidence, level: Level) -> Finding:
    times = _times(threshold, evidence)
    q = threshold.quantile or 0.0
    name = threshold.against or "reference"
    # A gain of 30 % is kept when the candidate is not slower than 70 % of what it is compared with.
    scale = 1.0 - threshold.bound if threshold.kind == "gain" else 1.0
    before = quantile(times.reference, q)
    margin, floored = (0.0, False) if threshold.kind == "gain" else (threshold.bound, False)
    if threshold.floor is not None and threshold.floor / before > margin:
        margin, floored = threshold.floor / before, True
    result = tail_regression(
        [value * scale for value in times.reference],
        times.candidate,
        quantile=q,
        margin=margin,
        alpha=level.alpha,
        confidence=level.confidence,
        blocks=times.blocks,
        boots=(times.reference_boots, times.candidate_boots),
    )
    text = sentence(result) if threshold.kind == "regression" else _gain_sentence(threshold, result, scale, before)
    if floored:
        text += f"; the margin is the floor of {(threshold.floor or 0.0) * 1000:.4g} ms, {margin:.0%} of {name}"
    return Finding(
        name=threshold.text,
        outcome=_DECISIONS[result.decision],
        text=text,
        tail=result if threshold.kind == "regression" else None,
        value=result.candidate_quantile,
        unit="seconds",
        p_value=result.p_value,
    )


def _times(threshold: Threshold, evidence: Evidence) -> PairedTimes:
    name = threshold.against or "reference"
    reference, candidate = evidence.arms[name], evidence.arms["candidate"]
    return paired_times(reference, candidate, phase=threshold.phase, metric=threshold.metric)


def _counted(threshold: Threshold, evidence: Evidence) -> Finding:
    value = counted(evidence.arms["candidate"], metric=threshold.metric, phase=threshold.phase, tier=threshold.tier)
    if isinstance(value, str):
        return _unknown(threshold, value)
    seen = f"{threshold.label} {value:.4g}"
    if threshold.kind == "absolute":
        kept = threshold.holds(value)
        text = f"{seen}, asked for {threshold.comparator} {threshold.bound:g}"
        return Finding(
            name=threshold.text, outcome="pass" if kept else "fail", text=text, value=value, unit=threshold.dimension
        )
    name = threshold.against or "reference"
    other = counted(evidence.arms[name], metric=threshold.metric, phase=threshold.phase, tier=threshold.tier)
    if isinstance(other, str):
        return _unknown(threshold, f"{name}: {other}")
    higher = threshold.metric == "hit_rate"
    better = value - other if higher else other - value
    text = f"{seen} against {other:.4g} of {name}"
    if threshold.kind == "gain":
        if other == 0.0 and not (higher and value > 0.0):
            return _unknown(threshold, f"{text}: no share of nothing can be gained")
        kept = other == 0.0 or _keeps(better / other, threshold)
    else:
        within = threshold.floor is not None and -better < threshold.floor
        kept = better >= 0.0 or within or (other > 0.0 and _keeps(-better / other, threshold))
    return Finding(
        name=threshold.text, outcome="pass" if kept else "fail", text=text, value=value, unit=threshold.dimension
    )


def _keeps(share: float, threshold: Threshold) -> bool:
    return dataclasses.replace(threshold, kind="absolute").holds(share)


def _unknown(threshold: Threshold, text: str) -> Finding:
    return Finding(name=threshold.text, outcome="inconclusive", text=text)


def sentence(result: TailResult) -> str:
    """Say what was found in one sentence."""
    said = result.explanation.partition(f", n = {result.n}: ")[2] or result.explanation
    return (
        f"p{result.quantile * 100:g} {result.candidate_quantile * 1000:.4g} ms against "
        f"{result.reference_quantile * 1000:.4g} ms: ratio {result.ratio:.3f} [{result.ratio_low:.3f}, "
        f"{result.ratio_high:.3f}] at {result.confidence:.1%}, margin {result.margin:.0%}, n = {result.n} per arm: "
        f"{said}"
    )


def _gain_sentence(threshold: Threshold, result: TailResult, scale: float, before: float) -> str:
    low, high = 1.0 - result.ratio_high * scale, 1.0 - result.ratio_low * scale
    verdict = {
        "worse": f"less than the {threshold.bound:.0%} asked for (p = {result.p_value:.2g})",
        "not_worse": f"at least the {threshold.bound:.0%} asked for",
        "inconclusive": f"neither clearly above nor below {threshold.bound:.0%}",
    }[result.decision]
    return (
        f"{threshold.label} {result.candidate_quantile * 1000:.4g} ms against {before * 1000:.4g} ms of "
        f"{threshold.against}: a gain of {1.0 - result.ratio * scale:.1%} ({low:.1%} to {high:.1%} at "
        f"{result.confidence:.1%}), n = {result.n} per arm: {verdict}"
    )


def _binom() -> Any:
    try:
        from scipy.stats import binom
    except ImportError:
        raise MissingExtraError("a bound on a quantile", "gate", "scipy") from None
    return binom
