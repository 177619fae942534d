"""The gate of a pytest run: every measurement that tests took, judged as ``kvoffload gate`` judges a candidate.

The reference is a baseline that was recorded earlier. What a baseline holds and the run has not is a failure, unless
the command line left out the tests that take it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_kvoffload.errors import IncomparableError
from pytest_kvoffload.gate.baseline import Baseline, BaselineKey, updated
from pytest_kvoffload.gate.evaluate import Level, held_back
from pytest_kvoffload.gate.judge import as_recorded, hindrance, judge
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.thresholds import CONTROL, Threshold
from pytest_kvoffload.gate.verdict import Finding, Policy, Verdict
from pytest_kvoffload.records import Measurement

SHOWN = 3
"""Names that a sentence spells out; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One test asked for one measurement."""

    test: str
    key: BaselineKey
    file: str | None = None
    """Name of the measurement's file in the run; ``None`` where none came of it."""
    judged: bool = True
    """``False`` where the test's mark says ``gate=False``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which tests the run had, and which the command line left out."""

    selected: frozenset[str]
    finished: frozenset[str]
    deselected: frozenset[str] = frozenset()
    left_out: Callable[[str], bool] = lambda test: False
    """Whether paths of the command line leave a test out that was not collected."""
    narrowed: bool = False
    """Whether the command line leaves out anything at all."""
    stopped: str = ""
    """Why the run ended before its last test, such as ``stopping after 1 failures``."""

    @property
    def unfinished(self) -> frozenset[str]:
        """Tests that were to run and did not."""
        return self.selected - self.finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a run."""

    policy: Policy
    thresholds: tuple[Threshold, ...]
    """At least one; see :func:`pytest_kvoffload.gate.judge.default_thresholds`."""
    baselines: Mapping[BaselineKey, Baseline]
    """Those of this runner and engine."""
    where: str
    """The folder of baselines, for messages."""
    calibration: str
    control: str = CONTROL
    """The connector that ``control`` stands for where no connector has that name."""


@dataclass(slots=True, kw_only=True)
class SuiteArm:
    """All measurements of one connector under one variant of the configuration."""

    key: BaselineKey
    blocks: list[Block] = field(default_factory=list)
    tests: set[str] = field(default_factory=set)
    judged: bool = False
    twice: str = ""
    """Two measurements that cannot be told apart, in words."""

    @property
    def offloads(self) -> bool:
        """Whether it has a tier, so that thresholds are asked of it."""
        return not self.blocks or self.blocks[0].measurement.connector.kind != "recompute"


def suite_arms(uses: Sequence[Use], measurements: Mapping[str, Measurement]) -> list[SuiteArm]:
    """Return the arms of a run, in the order in which tests asked for them; a block's number is its seed."""
    arms: dict[BaselineKey, SuiteArm] = {}
    files: dict[tuple[BaselineKey, str], set[str]] = {}
    for use in uses:
        arm = arms.setdefault(use.key, SuiteArm(key=use.key))
        arm.tests.add(use.test)
        arm.judged = arm.judged or use.judged
        if use.file is not None and use.file in measurements:
            files.setdefault((use.key, use.file), set()).add(use.test)
    for (key, file), tests in files.items():
        arm, measurement = arms[key], measurements[file]
        seed = measurement.workload.seed
        if any(block.block == seed for block in arm.blocks):
            arm.twice = f"two measurements of {key.label} with seed {seed} and unlike configurations"
            continue
        arm.blocks.append(Block(block=seed, boot=0, measurement=measurement, tests=tuple(sorted(tests))))
    for arm in arms.values():
        arm.blocks.sort(key=lambda block: block.block)
    return list(arms.values())


def judge_suite(arms: Sequence[SuiteArm], selection: Selection, question: Question) -> Verdict:
    """Judge everything that a run measured, as one family.

    Raises:
        MissingExtraError: numpy or scipy is not installed.
    """
    findings: list[Finding] = []
    notes: list[str] = []
    if selection.unfinished or selection.stopped:
        findings.append(_incomplete(selection))
    for arm in arms:
        if not arm.judged:
            notes.append(f"not judged: {arm.key.label}: its tests say gate=False")
            continue
        found = _judge_arm(arm, arms, selection, question)
        findings += [dataclasses.replace(one, name=f"{arm.key.label}: {one.name}") for one in found]
    measured = {arm.key: arm for arm in arms}
    for key, baseline in question.baselines.items():
        if key in measured and not measured[key].blocks:
            continue  # it was asked for, and the arm's own finding says what became of it
        for what, tests in _lacking(baseline, measured.get(key)):
            finding, note = _missing(f"{key.label}{what}", tests, selection, baseline)
            findings += [finding] if finding else []
            notes += [note] if note else []
    judged = [arm for arm in arms if arm.judged and arm.blocks]
    if any(arm.key in question.baselines for arm in judged):
        notes.append(
            f"reference: baselines in {question.where}; they were not measured in this run, so what the machine did "
            f"since counts as the candidate's"
        )
    if not findings:
        text = "no test took a measurement that is to be judged"
        findings.append(Finding(name="anything judged", outcome="inconclusive", text=text))
    return Verdict(
        reference=f"baselines in {question.where}",
        candidate=", ".join(arm.key.label for arm in judged),
        findings=held_back(findings, alpha=question.policy.alpha),
        requests_per_arm=min((_requests(arm, question.policy) for arm in judged), default=0),
        boots_per_arm=1 if judged else 0,
        calibration=question.calibration,
        notes=tuple(notes),
    )


def _judge_arm(
    arm: SuiteArm, arms: Sequence[SuiteArm], selection: Selection, question: Question
) -> tuple[Finding, ...]:
    if not arm.blocks:
        return (_unmeasured(arm, selection),)
    if arm.twice:
        text = f"{arm.twice}: give one of the connectors a name of its own"
        return (Finding(name="told apart", outcome="inconclusive", text=text),)
    thresholds = [t for t in question.thresholds if t.against != arm.key.connector]
    baseline = question.baselines.get(arm.key)
    recorded = _same_blocks(baseline, arm)
    none = "" if recorded else _why_no_reference(arm, baseline, question)
    if not arm.offloads:
        return (as_recorded(recorded, arm.blocks),) if recorded else ()
    others = {t.against: _arm_named(t.against, arm, arms, question) for t in thresholds if t.against}
    if not thresholds:  # every threshold is over this very arm
        stopped = hindrance(recorded, arm.blocks, policy=question.policy, no_reference=none)
        return (stopped or Finding(name="measured", outcome="pass", text="usable, and what the others compare with"),)
    findings = judge(
        recorded,
        arm.blocks,
        policy=question.policy,
        thresholds=thresholds,
        others={name: other.blocks for name, other in others.items() if other is not None},
        level=Level(alpha=question.policy.alpha, confidence=question.policy.confidence),
        no_reference=none,
    )
    return (as_recorded(recorded, arm.blocks), *findings) if recorded else findings


def record_suite(
    arms: Sequence[SuiteArm], selection: Selection, baselines: Mapping[BaselineKey, Baseline], *, commit: str | None
) -> tuple[list[Baseline], list[str]]:
    """Return the baselines that a run makes, and in words what it leaves as it is.

    Raises:
        IncomparableError: a measurement with failed requests, or one that is not complete.
    """
    made: list[Baseline] = []
    kept: list[str] = []
    for arm in arms:
        old = baselines.get(arm.key)
        if not arm.judged or not arm.blocks:
            continue
        if arm.twice:
            raise IncomparableError(f"{arm.twice}: give one of the connectors a name of its own")
        away = {test for block in old.blocks for test in block.tests} - selection.selected if old else set()
        if away and selection.narrowed:
            kept.append(f"kept as it was: {arm.key.label}: this run leaves out {_listed(away)}")
            continue
        made.append(updated(old, arm.key, arm.blocks, commit=commit))
    return made, kept


def _same_blocks(baseline: Baseline | None, arm: SuiteArm) -> tuple[Block, ...]:
    if baseline is None:
        return ()
    seeds = {block.measurement.workload.seed for block in arm.blocks}
    same = [block for block in baseline.blocks if block.measurement.workload.seed in seeds]
    return tuple(dataclasses.replace(block, block=block.measurement.workload.seed) for block in same)


def _why_no_reference(arm: SuiteArm, baseline: Baseline | None, question: Question) -> str:
    record = "record one with pytest --kvoffload-baseline-update"
    if baseline is None:
        return f"no baseline for {arm.key} in {question.where}: {record}"
    return f"the baseline in {question.where} was recorded with other seeds: {record}"


def _arm_named(name: str, arm: SuiteArm, arms: Sequence[SuiteArm], question: Question) -> SuiteArm | None:
    """Return the arm that a threshold compares with: the same model, engine and variant, another connector."""
    names = {name, question.control} if name == CONTROL else {name}
    for other in arms:
        if other.key.connector in names and other.blocks:
            same = dataclasses.replace(other.key, connector=arm.key.connector)
            if same == arm.key:
                return other
    return None


def _unmeasured(arm: SuiteArm, selection: Selection) -> Finding:
    who = _listed(arm.tests)
    if arm.tests & selection.unfinished:
        return Finding(name="measured", outcome="inconclusive", text=f"the run stopped while {who} measured it")
    return Finding(name="measured", outcome="fail", text=f"asked for by {who}, and no measurement came of it")


def _lacking(baseline: Baseline, arm: SuiteArm | None) -> list[tuple[str, tuple[str, ...]]]:
    """Return what a baseline holds and the run has not: in words what tells it apart, and the tests that took it.

    A baseline of ``kvoffload baseline`` knows no tests: one measurement of its connector is enough for all of it.
    """
    seeds = {block.block for block in arm.blocks} if arm is not None else set()
    by_tests = [block for block in baseline.blocks if block.tests]
    if not by_tests:
        return [] if seeds else [("", ())]
    gone = [block for block in by_tests if block.measurement.workload.seed not in seeds]
    if len(by_tests) == 1:
        return [("", block.tests) for block in gone]
    return [(f", seed {block.measurement.workload.seed}", block.tests) for block in gone]


def _missing(
    what: str, tests: tuple[str, ...], selection: Selection, baseline: Baseline
) -> tuple[Finding | None, str | None]:
    """Judge a measurement that the baseline has and the run has not: a finding, or a note where it was deselected."""
    name = f"missing: {what}"
    recorded = f"the baseline of {baseline.newest.recorded_at} has it, this run has not"
    if not tests:
        if selection.unfinished:
            return Finding(name=name, outcome="inconclusive", text=f"{recorded}: the run stopped early"), None
        if selection.narrowed:
            return None, f"not judged: deselected: {what} (recorded by kvoffload baseline, which knows no test)"
        return Finding(name=name, outcome="fail", text=f"{recorded}: no test takes it"), None
    who = _listed(tests)
    here = selection.selected.intersection(tests)
    if here & selection.unfinished:
        return Finding(name=name, outcome="inconclusive", text=f"{recorded}: the run stopped before {who}"), None
    if here:
        return Finding(name=name, outcome="fail", text=f"{recorded}: {who} ran and did not take it"), None
    if any(test in selection.deselected or selection.left_out(test) for test in tests):
        return None, f"not judged: deselected: {what} ({who})"
    text = f"{recorded}: {who}, which took it, was not collected"
    return Finding(name=name, outcome="fail", text=text), None


def _incomplete(selection: Selection) -> Finding:
    why = selection.stopped or "it ended before its last test"
    text = f"the run stopped early ({why}): {len(selection.unfinished)} of {len(selection.selected)} tests did not run"
    if selection.unfinished:
        text += f": {_listed(selection.unfinished)}"
    return Finding(name="complete", outcome="inconclusive", text=text)


def _requests(arm: SuiteArm, policy: Policy) -> int:
    phases = [p for block in arm.blocks for p in block.measurement.phases if p.name == policy.phase]
    return sum(len(phase.samples) for phase in phases)


def _listed(tests: Sequence[str] | set[str] | frozenset[str]) -> str:
    names = sorted(tests)
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest
