"""The verdict on a candidate: pass, fail or inconclusive, each with its evidence. The gate fails closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pytest_kvoffload.errors import ExitCode, IncomparableError
from pytest_kvoffload.gate.comparable import differences, tier_never_reached, unusable
from pytest_kvoffload.gate.samples import DEFAULT_PHASE, Block, paired_ttft
from pytest_kvoffload.stats import SequentialGate, TailResult, tail_regression

VERDICT_SCHEMA_VERSION = 1
Outcome: TypeAlias = Literal["pass", "fail", "inconclusive"]

_DECISIONS: dict[str, Outcome] = {"worse": "fail", "not_worse": "pass", "inconclusive": "inconclusive"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was judged."""

    name: str
    outcome: Outcome
    text: str
    tail: TailResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The whole: fail if anything failed, else inconclusive if anything was, else pass."""

    reference: str
    candidate: str
    findings: tuple[Finding, ...]
    requests_per_arm: int
    boots_per_arm: int
    calibration: str
    notes: tuple[str, ...] = ()
    schema_version: int = field(default=VERDICT_SCHEMA_VERSION)

    @property
    def outcome(self) -> Outcome:
        """``fail``, ``inconclusive`` or ``pass``; nothing judged is inconclusive."""
        outcomes = {finding.outcome for finding in self.findings}
        if "fail" in outcomes:
            return "fail"
        return "pass" if outcomes == {"pass"} else "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        """0 for pass, 1 for fail, 3 for inconclusive."""
        return {"pass": ExitCode.OK, "fail": ExitCode.FAILED, "inconclusive": ExitCode.INCONCLUSIVE}[self.outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is asked of the tail. ``margin`` is relative: 0.10 lets the quantile grow by a tenth."""

    quantile: float = 0.99
    margin: float = 0.10
    alpha: float = 0.01
    confidence: float = 0.95
    phase: str = DEFAULT_PHASE


def judge(
    reference: Sequence[Block],
    candidate: Sequence[Block],
    *,
    policy: Policy,
    across: Sequence[str] = (),
    looks: SequentialGate | None = None,
) -> tuple[Finding, ...]:
    """Judge a candidate against a reference.

    Args:
        reference: the reference's blocks.
        candidate: the candidate's blocks, replays of the same requests.
        policy: what is asked.
        across: what may differ; see :func:`comparable.differences`.
        looks: the plan over which the error is spent; the requests so far must be one of its looks.

    Returns:
        Findings. What makes the comparison impossible comes alone: nothing else is then worth reading.
    """
    name = f"ttft_p{policy.quantile * 100:g} regression < {policy.margin:.0%}"
    unlike = differences(reference, candidate, across=across)
    if unlike:
        return (Finding(name="comparable", outcome="inconclusive", text="; ".join(unlike)),)
    broken = unusable(reference, phase=policy.phase)
    if broken:
        return (Finding(name="usable reference", outcome="inconclusive", text="; ".join(broken)),)
    broken = unusable(candidate, phase=policy.phase)
    if broken:
        return (Finding(name="usable candidate", outcome="fail", text="; ".join(broken)),)
    silent = tier_never_reached(reference, phase=policy.phase)
    if silent:
        return (Finding(name="tier exercised by the reference", outcome="inconclusive", text=silent),)
    silent = tier_never_reached(candidate, phase=policy.phase)
    if silent:
        return (Finding(name="tier exercised", outcome="fail", text=silent),)
    try:
        times = paired_ttft(reference, candidate, phase=policy.phase)
    except IncomparableError as error:
        return (Finding(name="comparable", outcome="inconclusive", text=str(error)),)
    boots = (times.reference_boots, times.candidate_boots)
    if looks is None:
        result = tail_regression(
            times.reference,
            times.candidate,
            quantile=policy.quantile,
            margin=policy.margin,
            alpha=policy.alpha,
            confidence=policy.confidence,
            blocks=times.blocks,
            boots=boots,
        )
    else:
        result = looks.look(
            times.reference,
            times.candidate,
            quantile=policy.quantile,
            margin=policy.margin,
            blocks=times.blocks,
            boots=boots,
        ).result
    findings = [Finding(name=name, outcome=_DECISIONS[result.decision], text=sentence(result), tail=result)]
    if candidate[0].measurement.connector.kind != "recompute":
        findings.insert(0, Finding(name="tier exercised", outcome="pass", text="the candidate's tier served the phase"))
    return tuple(findings)


def sentence(result: TailResult) -> str:
    """Say what was found in one sentence."""
    return (
        f"p{result.quantile * 100:g} {result.candidate_quantile * 1000:.4g} ms against "
        f"{result.reference_quantile * 1000:.4g} ms: ratio {result.ratio:.3f} [{result.ratio_low:.3f}, "
        f"{result.ratio_high:.3f}], p = {result.p_value:.2g}, n = {result.n} per arm; {result.explanation}"
    )
