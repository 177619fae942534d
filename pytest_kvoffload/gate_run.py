"""One run of the gate: the same seeded requests on both arms, in interleaved blocks, over several boots.

Machine drift falls on both arms, since they take turns (A B, B A, ...); what a boot brings of its own falls out,
since each arm is booted more than once. After each round the evidence is looked at, and a clear verdict stops early.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_kvoffload.errors import EngineError, ExitCode, IncomparableError, KVOffloadError, LintError, UsageError
from pytest_kvoffload.gate.evaluate import Level
from pytest_kvoffload.gate.judge import as_recorded, hindrance, judge
from pytest_kvoffload.gate.samples import Block, paired_times
from pytest_kvoffload.gate.spread import spread_of
from pytest_kvoffload.gate.thresholds import Threshold
from pytest_kvoffload.gate.verdict import Finding, Policy, Verdict
from pytest_kvoffload.records import WorkloadConfig
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
    thresholds: tuple[Threshold, ...] = ()
    """What is asked; the policy's tail when empty."""
    others: Mapping[str, Arm] = field(default_factory=dict)
    """Further arms, such as the control, by the name that thresholds use."""
    recorded: tuple[Block, ...] = ()
    """Blocks of the reference that were recorded earlier (a baseline): it is not measured again then."""
    requests: int = 300
    """Requests per arm at most; the number of blocks follows from the first block."""
    boots: int = 2
    side_by_side: bool = True
    """All servers alive at once (they take turns); else one at a time, which boots more often."""
    across: tuple[str, ...] = ()
    calibration: str = "none: run kvoffload gate --calibrate on this runner"
    reference_text: str | None = None
    """The configuration that the reference was read from, where it is another text of the candidate's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """A verdict and everything it rests on."""

    verdict: Verdict
    reference: tuple[Block, ...]
    candidate: tuple[Block, ...]
    others: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)


class _Run:
    """Collects the blocks of all arms of one run."""

    def __init__(self, session: RunSession, plan: GatePlan) -> None:
        self.session, self.plan = session, plan
        self.blocks: dict[str, list[Block]] = {name: [] for name in ("reference", "candidate", *plan.others)}
        arms = {"reference": plan.reference, "candidate": plan.candidate, **plan.others}
        if plan.recorded:
            del arms["reference"]
        self._arms = {name: dataclasses.replace(arm, label=arm.label or name) for name, arm in arms.items()}

    def measure(self, blocks: Sequence[int], *, boot: int, only: Sequence[str] | None = None) -> None:
        """Measure some blocks on all arms, or some; they take turns, and who begins alternates."""
        names = [name for name in self._arms if only is None or name in only]
        if self.plan.side_by_side:
            turns = [(name, block) for block in blocks for name in (names if block % 2 == 0 else names[::-1])]
        else:
            turns = [(name, block) for name in (names if boot % 2 == 0 else names[::-1]) for block in blocks]
        for name, block in turns:
            workload = dataclasses.replace(self.plan.workload, seed=self.plan.workload.seed + block)
            try:
                measurement = self.session.measure(dataclasses.replace(self._arms[name], boot=boot), workload)
            except KVOffloadError as error:
                raise _ArmFailed(name, error) from error
            self.blocks[name].append(Block(block=block, boot=boot, measurement=measurement))
        if self.plan.recorded and (only is None or "reference" in only):
            self.blocks["reference"] += [block for block in self.plan.recorded if block.block in blocks]

    def judge(self, level: Level) -> tuple[Finding, ...]:
        """Judge what there is; what a baseline has and this run has not is a failure."""
        findings = judge(
            self.blocks["reference"],
            self.blocks["candidate"],
            policy=self.plan.policy,
            thresholds=self.plan.thresholds,
            others={name: self.blocks[name] for name in self.plan.others},
            across=self.plan.across,
            level=level,
        )
        recorded = self.plan.recorded
        return (as_recorded(recorded, self.blocks["candidate"]), *findings) if recorded else findings

    def requests_per_block(self) -> int:
        """Requests of the judged phase in one block."""
        return max(1, len(self.blocks["candidate"][0].measurement.phase(self.plan.policy.phase).samples))

    def done(self, findings: tuple[Finding, ...], note: str = "", *, stopped_by: ExitCode | None = None) -> GateRun:
        """Put the verdict together."""
        reference, candidate = self.blocks["reference"], self.blocks["candidate"]
        n, spread, phase = 0, None, self.plan.policy.phase
        try:
            times = paired_times(reference, candidate, phase=phase)
            n, spread = times.n, spread_of(times.reference, times.candidate, phase=phase)
        except (IncomparableError, KeyError):  # what made the arms unlike is in the findings already
            pass
        verdict = Verdict(
            reference=self.plan.reference.name,
            candidate=self.plan.candidate.name,
            findings=findings,
            requests_per_arm=n,
            boots_per_arm=len({block.boot for block in candidate}),
            calibration=self.plan.calibration,
            notes=(note,) if note else (),
            spread=spread,
            stopped_by=stopped_by,
        )
        others = {name: tuple(self.blocks[name]) for name in self.plan.others}
        return GateRun(verdict=verdict, reference=tuple(reference), candidate=tuple(candidate), others=others)


class _ArmFailed(Exception):  # noqa: N818  # carries which arm an error belongs to; never leaves this module
    def __init__(self, name: str, error: KVOffloadError) -> None:
        super().__init__(str(error))
        self.name, self.error = name, error


def run_gate(session: RunSession, plan: GatePlan, *, say: Callable[[str], None] = lambda text: None) -> GateRun:
    """Measure all arms until a look is clear or the requests are spent.

    A server that does not boot, dies or is refused by the linter ends the run with a verdict: ``fail`` when it is the
    candidate's, ``inconclusive`` when it is another's, with the error's exit code either way.

    Raises:
        UsageError: a plan that makes no sense.
    """
    if plan.boots < 1 or plan.requests < 1:
        raise UsageError("the gate needs at least one boot and one request per arm")
    run = _Run(session, plan)
    try:
        return _looks_until_clear(run, say)
    except _ArmFailed as end:
        blamed = end.name == "candidate" and isinstance(end.error, (EngineError, LintError))
        found = Finding(name=f"{end.name} measured", outcome="fail" if blamed else "inconclusive", text=str(end.error))
        return run.done((found,), f"the run ended at {end.name}", stopped_by=end.error.exit_code)
    except KeyboardInterrupt:
        found = Finding(name="complete", outcome="inconclusive", text="interrupted before a verdict was reached")
        return run.done((found,), stopped_by=ExitCode.INTERRUPTED)


def _looks_until_clear(run: _Run, say: Callable[[str], None]) -> GateRun:
    plan = run.plan
    run.measure([0], boot=0, only=("reference", "candidate"))
    stopped = hindrance(run.blocks["reference"], run.blocks["candidate"], policy=plan.policy, across=plan.across)
    if stopped is not None:
        return run.done((stopped,), "stopped after the first block")
    if plan.others:  # not before: their boots would be for nothing where the candidate fails at once
        run.measure([0], boot=0, only=tuple(plan.others))
    per_block = run.requests_per_block()
    blocks = math.ceil(plan.requests / per_block)
    if plan.recorded:
        blocks = min(blocks, len({block.block for block in plan.recorded}))
    schedule = _schedule(blocks, plan.boots)
    looks = _looks(blocks, per_block)
    errors = SequentialGate(looks=looks, alpha=plan.policy.alpha)
    misses = SequentialGate(looks=looks, alpha=1.0 - plan.policy.confidence)
    findings: tuple[Finding, ...] = ()
    for boot, numbers in enumerate(schedule):
        left = [block for block in numbers if block > 0]
        for chunk in _chunks(left, [n // per_block for n in looks]) or ([[]] if numbers == [0] else []):
            run.measure(chunk, boot=boot)
            n = len(run.blocks["candidate"]) * per_block
            if n not in looks:
                continue
            before = max((look for look in looks if look < n), default=0)
            level = Level(
                alpha=errors.spent(n) - errors.spent(before),
                confidence=1.0 - (misses.spent(n) - misses.spent(before)),
            )
            findings = run.judge(level)
            outcomes = {finding.outcome for finding in findings}
            worst = next((finding for finding in findings if finding.outcome != "pass"), findings[-1])
            say(f"{n} of {blocks * per_block} requests per arm: {worst.name}: {worst.outcome}: {worst.text}")
            if "fail" in outcomes or outcomes == {"pass"}:
                note = "" if n == looks[-1] else f"stopped early, at {n} of {blocks * per_block} requests"
                return run.done(findings, note)
        run.session.stop_servers()
    return run.done(findings)


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


def measure_arm(session: RunSession, plan: GatePlan) -> list[Block]:
    """Measure the candidate alone, in the blocks and boots of a gate run: what a baseline records."""
    blocks: list[Block] = []

    def one(number: int, boot: int) -> None:
        workload = dataclasses.replace(plan.workload, seed=plan.workload.seed + number)
        arm = dataclasses.replace(plan.candidate, boot=boot, label="baseline")
        blocks.append(Block(block=number, boot=boot, measurement=session.measure(arm, workload)))

    one(0, 0)
    per_block = max(1, len(blocks[0].measurement.phase(plan.policy.phase).samples))
    for boot, numbers in enumerate(_schedule(math.ceil(plan.requests / per_block), plan.boots)):
        for number in numbers:
            if number > 0:
                one(number, boot)
        session.stop_servers()
    return blocks


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
