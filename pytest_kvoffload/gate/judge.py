"""From the blocks of all arms to findings: what makes them incomparable first, then every threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_kvoffload.gate.baseline import missing
from pytest_kvoffload.gate.comparable import differences, tier_never_reached, unusable
from pytest_kvoffload.gate.evaluate import Evidence, Level, evaluate
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.thresholds import Threshold
from pytest_kvoffload.gate.verdict import Finding, Policy


def default_thresholds(policy: Policy) -> tuple[Threshold, ...]:
    """Return what is asked where a configuration names no thresholds: the policy's tail must not regress."""
    return (
        Threshold(
            text=f"ttft_p{policy.quantile * 100:g} regression < {policy.margin * 100:g}%",
            metric="ttft",
            quantile=policy.quantile,
            phase=policy.phase,
            tier=None,
            kind="regression",
            comparator="<",
            bound=policy.margin,
            against="reference",
        ),
    )


def hindrance(
    reference: Sequence[Block],
    candidate: Sequence[Block],
    *,
    policy: Policy,
    across: Sequence[str] = (),
    no_reference: str = "",
) -> Finding | None:
    """Return what makes the arms worthless as evidence, ``None`` when nothing does."""
    if not no_reference:
        unlike = differences(reference, candidate, across=across)
        if unlike:
            return Finding(name="comparable", outcome="inconclusive", text="; ".join(unlike))
        broken = unusable(reference, phase=policy.phase)
        if broken:
            return Finding(name="usable reference", outcome="inconclusive", text="; ".join(broken))
    broken = unusable(candidate, phase=policy.phase)
    if broken:
        return Finding(name="usable candidate", outcome="fail", text="; ".join(broken))
    silent = None if no_reference else tier_never_reached(reference, phase=policy.phase)
    if silent:
        return Finding(name="tier exercised by the reference", outcome="inconclusive", text=silent)
    silent = tier_never_reached(candidate, phase=policy.phase)
    if silent:
        return Finding(name="tier exercised", outcome="fail", text=silent)
    return None


def as_recorded(recorded: Sequence[Block], run: Sequence[Block]) -> Finding:
    """Judge that a run measured what its baseline holds (phases, hit rates of tiers): what is gone is a failure."""
    gone = missing(recorded, run)
    return Finding(
        name="measured as in the baseline",
        outcome="fail" if gone else "pass",
        text=f"the baseline has {', '.join(gone)}, this run has not" if gone else "every measurement is there",
    )


def judge(
    reference: Sequence[Block],
    candidate: Sequence[Block],
    *,
    policy: Policy,
    thresholds: Sequence[Threshold] = (),
    others: Mapping[str, Sequence[Block]] | None = None,
    across: Sequence[str] = (),
    level: Level | None = None,
    no_reference: str = "",
) -> tuple[Finding, ...]:
    """Judge a candidate.

    Args:
        reference: the reference's blocks.
        candidate: the candidate's blocks, replays of the same requests.
        policy: the error rates, the phase, and what is asked where there are no thresholds.
        thresholds: what is asked.
        others: blocks of further arms, by the name that thresholds use.
        across: what may differ between reference and candidate; see :func:`comparable.differences`.
        level: what this look may spend; the policy's whole error by default.
        no_reference: why there is no reference; what asks for one is then inconclusive, everything else is judged.

    Returns:
        Findings. What makes the comparison impossible comes alone: nothing else is then worth reading.
    """
    stopped = hindrance(reference, candidate, policy=policy, across=across, no_reference=no_reference)
    if stopped is not None:
        return (stopped,)
    broken = {"reference": no_reference} if no_reference else {}
    for name, blocks in (others or {}).items():
        why = (*differences(blocks, candidate, called=name), *unusable(blocks, phase=policy.phase))
        silent = None if why else tier_never_reached(blocks, phase=policy.phase)
        if why or silent:
            broken[name] = "; ".join(why) or str(silent)
    findings = evaluate(
        thresholds or default_thresholds(policy),
        Evidence(arms={**(others or {}), "reference": reference, "candidate": candidate}, broken=broken),
        level=level or Level(alpha=policy.alpha, confidence=policy.confidence),
    )
    if candidate[0].measurement.connector.kind != "recompute":
        served = Finding(name="tier exercised", outcome="pass", text="the candidate's tier served the phase")
        findings = (served, *findings)
    return findings
