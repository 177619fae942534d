"""One run of the gate: the same seeded requests on both arms, in interleaved blocks, over several boots.

Machine drift falls on both arms, since they take turns (A B, B A, ...); what a boot brings of its own falls out,
since each arm is booted more than once. After each round the evidence is looked at, and a clear verdict stops early.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_kvoffload.errors import EngineError, ExitCode, IncomparableError, KVOffloadError, LintError, UsageError
from pytest_kvoffload.gate.evaluate import Level
from pytest_kvoffload.gate.judge import as_recorded, hindrance, judge
from pytest_kvoffload.gate.pace import Pace, Place, Watch
from pytest_kvoffload.gate.samples import Block, paired_times
from pytest_kvoffload.gate.schedule import chunks_of, looks_of, schedule_of
from pytest_kvoffload.gate.spread import spread_of
from pytest_kvoffload.gate.thresholds import Threshold
from pytest_kvoffload.gate.verdict import Finding, Policy, Verdict
from pytest_kvoffload.records import WorkloadConfig
from pytest_kvoffload.session import Arm, RunSession
from pytest_kvoffload.stats import SequentialGate

_WARM_UP_SEED = 900_001
"""Added to the workload's seed; further than any block."""


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


def unwatched(place: Place) -> None:
    """Tell nobody."""


class _Run:
    """Collects the blocks of all arms of one run."""

    def __init__(self, session: RunSession, plan: GatePlan, watch: Watch) -> None:
        self.session, self.plan = session, plan
        self.blocks: dict[str, list[Block]] = {name: [] for name in ("reference", "candidate", *plan.others)}
        arms = {"reference": plan.reference, "candidate": plan.candidate, **plan.others}
        if plan.recorded:
            del arms["reference"]
        self._arms = {name: dataclasses.replace(arm, label=arm.label or name) for name, arm in arms.items()}
        self._watch, self._pace = watch, Pace()
        self._total: int | None = None
        self._notes: list[str] = []
        self._boots: dict[str, int] = {}
        self._living: set[str] = set()
        self._replayed = 0
        """Blocks in this boot."""

    def measure(self, blocks: Sequence[int], *, boot: int, only: Sequence[str] | None = None) -> None:
        """Measure some blocks on all arms, or some; they take turns, and who begins alternates, from boot to boot too.

        Side by side, all servers are up before the first turn: a boot between two arms' turns would part them by
        minutes. Where one server lives at a time, the arm that lives begins: it need not boot again.
        """
        names = [name for name in self._arms if only is None or name in only]
        if self.plan.side_by_side:
            new = [name for name in names if blocks and name not in self._living]
            new = new[::-1] if boot % 2 else new  # which server is the older one takes turns as well
            for name in new:
                self._boot(name, boot)
            for name in new:
                self._warm_up(name, boot)
            turns = []
            for block in blocks:
                turns += [(name, block) for name in (names if (boot + self._replayed) % 2 == 0 else names[::-1])]
                self._replayed += "candidate" in names
        else:
            names.sort(key=lambda name: name not in self._living)
            turns = [(name, block) for name in names for block in blocks]
        for name, block in turns:
            self._take(name, block, boot)
        if self.plan.recorded and (only is None or "reference" in only):
            self.blocks["reference"] += [block for block in self.plan.recorded if block.block in blocks]

    def _take(self, name: str, block: int, boot: int) -> None:
        self._say_place(name, block)
        new = name not in self._living
        arm = self._boot(name, boot)
        if new:
            self._warm_up(name, arm.boot)
            self._say_place(name, block)
        with self._blaming(name), self._pace.turn():
            measurement = self.session.measure(arm, workload_of(self.plan, block))
        self.blocks[name].append(Block(block=block, boot=arm.boot, measurement=measurement))

    def _boot(self, name: str, boot: int) -> Arm:
        """Return the arm as the boot in which it lives, booted if it does not."""
        new = name not in self._living
        if not self.plan.side_by_side:
            # Each boot counts, whatever round it falls into: one label for two would hide what a boot brings.
            boot = self._boots[name] = self._boots.get(name, -1) + new
        arm = dataclasses.replace(self._arms[name], boot=boot)
        if new:
            self._living = {*self._living, name} if self.plan.side_by_side else {name}
            with self._blaming(name), self._pace.boot():
                self.session.ready(arm)
        return arm

    def _warm_up(self, name: str, boot: int) -> None:
        """Replay a block that is not counted: what comes first after a boot is slower, and must fall on no arm."""
        self._say_place(name, None)
        with self._blaming(name), self._pace.boot():
            self.session.warm_up(dataclasses.replace(self._arms[name], boot=boot), warm_up_of(self.plan))

    @contextlib.contextmanager
    def _blaming(self, name: str) -> Iterator[None]:
        """Say of an error whose it is."""
        try:
            yield
        except KVOffloadError as error:
            raise _ArmFailed(name, error) from error

    def _say_place(self, name: str, block: int | None) -> None:
        per_block = self.requests_per_block()
        self._watch(
            Place(
                arm=name,
                block=None if block is None else block + 1,
                blocks=self._total,
                done=len(self.blocks[name]) * per_block,
                requests=None if self._total is None else self._total * per_block,
                seconds_left=self._pace.seconds_left,
            )
        )

    def expect(self, blocks: int, rounds: Sequence[Sequence[Sequence[int]]]) -> None:
        """Say how many blocks there are at most, and the rounds of each boot."""
        self._total = blocks
        if blocks < self.plan.boots and not self.plan.recorded:
            self._notes.append(
                f"{blocks} instead of {self.plan.boots} boots per arm: {self.plan.requests} requests are {blocks} "
                f"blocks of {self.requests_per_block()}, and a boot replays one at least"
            )
        each = len(rounds) if self.plan.side_by_side else 1 + sum(map(len, rounds))
        self._pace.expect(turns=len(self._arms) * blocks, boots=2 * len(self._arms) * each)

    def stop_servers(self) -> None:
        """Stop all servers: what comes next boots."""
        self.session.stop_servers()
        self._living = set()
        self._replayed = 0

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
        """Requests of the judged phase in one block, 0 before the candidate has replayed one."""
        return per_block_of(self.plan, self.blocks["candidate"][0]) if self.blocks["candidate"] else 0

    def done(self, findings: tuple[Finding, ...], note: str = "", *, stopped_by: ExitCode | None = None) -> GateRun:
        """Put the verdict together."""
        reference, candidate = self.blocks["reference"], self.blocks["candidate"]
        n, spread, phase = 0, None, self.plan.policy.phase
        both = {block.block for block in reference} & {block.block for block in candidate}
        try:  # a run that ended early may have a block on one arm only
            times = paired_times(*([b for b in arm if b.block in both] for arm in (reference, candidate)), phase=phase)
            n, spread = times.n, spread_of(times.reference, times.candidate, phase=phase)
        except (IncomparableError, KeyError):  # what made the arms unlike is in the findings already
            pass
        versions = [arm[0].measurement.server.vllm_version for arm in (reference, candidate) if arm]
        if len(set(versions)) == 2:
            self._notes.append(f"vLLM {versions[0]} on the reference, {versions[1]} on the candidate")
        verdict = Verdict(
            reference=self.plan.reference.name,
            candidate=self.plan.candidate.name,
            findings=findings,
            requests_per_arm=n,
            boots_per_arm=len({block.boot for block in candidate}),
            calibration=self.plan.calibration,
            notes=(*self._notes, *([note] if note else [])),
            spread=spread,
            stopped_by=stopped_by,
        )
        others = {name: tuple(self.blocks[name]) for name in self.plan.others}
        return GateRun(verdict=verdict, reference=tuple(reference), candidate=tuple(candidate), others=others)


class _ArmFailed(Exception):  # noqa: N818  # carries which arm an error belongs to; never leaves this module
    def __init__(self, name: str, error: KVOffloadError) -> None:
        super().__init__(str(error))
        self.name, self.error = name, error


def run_gate(
    session: RunSession,
    plan: GatePlan,
    *,
    say: Callable[[str], None] = lambda text: None,
    watch: Watch = unwatched,
) -> GateRun:
    """Measure all arms until a look is clear or the requests are spent.

    A server that does not boot, dies or is refused by the linter ends the run with a verdict: ``fail`` when it is the
    candidate's, ``inconclusive`` when it is another's, with the error's exit code either way.

    Args:
        session: boots and measures.
        plan: what is compared.
        say: told what each look showed.
        watch: told where the run is, before each turn.

    Raises:
        UsageError: a plan that makes no sense.
    """
    if plan.boots < 1 or plan.requests < 1:
        raise UsageError("the gate needs at least one boot and one request per arm")
    run = _Run(session, plan, watch)
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
    looks = looks_of(blocks, per_block)
    errors = SequentialGate(looks=looks, alpha=plan.policy.alpha)
    misses = SequentialGate(looks=looks, alpha=1.0 - plan.policy.confidence)
    findings: tuple[Finding, ...] = ()
    rounds = [
        chunks_of([block for block in numbers if block > 0], [n // per_block for n in looks])
        or ([[]] if numbers == [0] else [])
        for numbers in schedule_of(blocks, plan.boots)
    ]
    run.expect(blocks, rounds)
    for boot, chunks in enumerate(rounds):
        for chunk in chunks:
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
        run.stop_servers()
    return run.done(findings)


def workload_of(plan: GatePlan, block: int) -> WorkloadConfig:
    """Return the workload of a block: each has a seed of its own."""
    return dataclasses.replace(plan.workload, seed=plan.workload.seed + block)


def warm_up_of(plan: GatePlan) -> WorkloadConfig:
    """Return the workload that is replayed after a boot and not counted: requests that no block sends."""
    return dataclasses.replace(plan.workload, seed=plan.workload.seed + _WARM_UP_SEED, repeats=1)


def per_block_of(plan: GatePlan, block: Block) -> int:
    """Return the requests of the judged phase in a block, 1 at least."""
    phase = plan.policy.phase
    return max(1, len(block.measurement.phase(phase).samples) if phase in block.measurement.phase_names else 0)
