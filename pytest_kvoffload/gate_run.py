"""One run of the gate: the same seeded requests on both arms, in interleaved blocks, over several boots.

Machine drift falls on both arms, since they take turns (A B, B A, ...); what a boot brings of its own falls out,
since each arm is booted more than once. After each round the evidence is looked at, and a clear verdict stops early.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_kvoffload.errors import IncomparableError, UsageError
from pytest_kvoffload.gate.samples import Block, paired_ttft
from pytest_kvoffload.gate.verdict import Finding, Policy, Verdict, judge
from pytest_kvoffload.records import Measurement, WorkloadConfig
from pytest_kvoffload.session import Arm, RunSession
from pytest_kvoffload.stats import SequentialGate

LOOKS = 3
"""At how many points the evidence is looked at; the error is spent over all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePlan:
    """What a run compares and how long it may take."""

    reference: Arm
    candidate: Arm
    workload: WorkloadConfig
    policy: Policy
    requests: int = 300
    """Requests per arm at most; the number of blocks follows from the first block."""
    boots: int = 2
    side_by_side: bool = True
    """Both servers alive at once (they take turns); else one at a time, which boots more often."""
    across: tuple[str, ...] = ()
    calibration: str = "none: run kvoffload gate --calibrate on this runner"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """A verdict and everything it rests on."""

    verdict: Verdict
    reference: tuple[Block, ...]
    candidate: tuple[Block, ...]


def run_gate(session: RunSession, plan: GatePlan, *, say: Callable[[str], None] = lambda text: None) -> GateRun:
    """Measure both arms until a look is clear or the requests are spent.

    Raises:
        UsageError: a plan that makes no sense.
        EngineError: a server did not boot, or died.
    """
    if plan.boots < 1 or plan.requests < 1:
        raise UsageError("the gate needs at least one boot and one request per arm")
    reference: list[Block] = []
    candidate: list[Block] = []
    _round(session, plan, blocks=[0], boot=0, into=(reference, candidate))
    first = judge(reference, candidate, policy=plan.policy, across=plan.across)
    if first[0].outcome != "pass" and first[0].tail is None:
        return _done(plan, reference, candidate, first, "stopped after the first block")
    per_block = paired_ttft(reference, candidate, phase=plan.policy.phase).n
    schedule = _schedule(math.ceil(plan.requests / per_block), plan.boots)
    total = sum(len(blocks) for blocks in schedule)
    looks = SequentialGate(looks=_looks(total, per_block), alpha=plan.policy.alpha, confidence=plan.policy.confidence)
    findings: tuple[Finding, ...] = ()
    for boot, blocks in enumerate(schedule):
        left = [block for block in blocks if block > 0]
        for chunk in _chunks(left, [n // per_block for n in looks.looks]):
            _round(session, plan, blocks=chunk, boot=boot, into=(reference, candidate))
            n = len(reference) * per_block
            if n in looks.looks:
                findings = judge(reference, candidate, policy=plan.policy, across=plan.across, looks=looks)
                say(f"{n} of {total * per_block} requests per arm: {findings[-1].text}")
                if all(finding.outcome != "inconclusive" for finding in findings):
                    note = "" if n == looks.looks[-1] else f"stopped early, at {n} of {total * per_block} requests"
                    return _done(plan, reference, candidate, findings, note)
        session.stop_servers()
    return _done(plan, reference, candidate, findings, "")


def measure_runs(session: RunSession, plan: GatePlan, *, boots: int) -> list[list[Block]]:
    """Measure the candidate over several boots, the same requests in each: A against A.

    Each boot replays as many blocks as an arm of the gate would get in one boot.
    """
    runs: list[list[Block]] = []
    blocks = 1
    for boot in range(boots):
        arm = dataclasses.replace(plan.candidate, boot=boot, label="calibration")
        run: list[Block] = []
        block = 0
        while block < blocks:
            workload = dataclasses.replace(plan.workload, seed=plan.workload.seed + block)
            run.append(Block(block=block, boot=boot, measurement=session.measure(arm, workload)))
            if boot == 0 and block == 0:
                per_block = max(1, len(run[0].measurement.phase(plan.policy.phase).samples))
                blocks = math.ceil(plan.requests / per_block)
            block += 1
        session.stop_servers()
        runs.append(run)
    return runs


def _round(
    session: RunSession, plan: GatePlan, *, blocks: Sequence[int], boot: int, into: tuple[list[Block], list[Block]]
) -> None:
    """Measure some blocks on both arms; they take turns, and who begins alternates."""
    arms = (
        dataclasses.replace(plan.reference, boot=boot, label=plan.reference.label or "reference"),
        dataclasses.replace(plan.candidate, boot=boot, label=plan.candidate.label or "candidate"),
    )

    def one(side: int, block: int) -> None:
        workload = dataclasses.replace(plan.workload, seed=plan.workload.seed + block)
        measurement: Measurement = session.measure(arms[side], workload)
        into[side].append(Block(block=block, boot=boot, measurement=measurement))

    if plan.side_by_side:
        for block in blocks:
            for side in (0, 1) if block % 2 == 0 else (1, 0):
                one(side, block)
    else:
        for side in (0, 1) if boot % 2 == 0 else (1, 0):
            for block in blocks:
                one(side, block)


def _schedule(blocks: int, boots: int) -> list[list[int]]:
    """Spread blocks over boots as evenly as can be, in order."""
    boots = min(boots, blocks)
    size, rest = divmod(blocks, boots)
    out, start = [], 0
    for boot in range(boots):
        end = start + size + (boot < rest)
        out.append(list(range(start, end)))
        start = end
    return out


def _looks(blocks: int, per_block: int) -> tuple[int, ...]:
    """Requests at which to look: at the ends of equal shares of the blocks."""
    shares = {math.ceil(blocks * share / LOOKS) for share in range(1, LOOKS + 1)}
    return tuple(sorted(share * per_block for share in shares if share > 1 or blocks == 1)) or (blocks * per_block,)


def _chunks(blocks: Sequence[int], stops: Sequence[int]) -> list[list[int]]:
    """Cut blocks where a look is due: ``stops`` count blocks from the start of the run."""
    out: list[list[int]] = []
    for block in blocks:
        if out and out[-1][-1] + 1 not in stops:
            out[-1].append(block)
        else:
            out.append([block])
    return out


def _done(
    plan: GatePlan, reference: Sequence[Block], candidate: Sequence[Block], findings: tuple[Finding, ...], note: str
) -> GateRun:
    try:
        n = paired_ttft(reference, candidate, phase=plan.policy.phase).n
    except (IncomparableError, KeyError):  # what made the arms unlike is in the findings already
        n = 0
    verdict = Verdict(
        reference=plan.reference.name,
        candidate=plan.candidate.name,
        findings=findings,
        requests_per_arm=n,
        boots_per_arm=len({block.boot for block in reference}),
        calibration=plan.calibration,
        notes=(note,) if note else (),
    )
    return GateRun(verdict=verdict, reference=tuple(reference), candidate=tuple(candidate))
