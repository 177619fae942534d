"""The gate of a pytest run without pytest: what was measured, what is missing, and what of it is excused."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_kvoffload.errors import IncomparableError
from pytest_kvoffload.gate.baseline import Baseline, BaselineKey, updated
from pytest_kvoffload.gate.judge import default_thresholds
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.suite import Question, Selection, SuiteArm, Use, judge_suite, record_suite, suite_arms
from pytest_kvoffload.gate.thresholds import parse_thresholds
from pytest_kvoffload.gate.verdict import Policy, Verdict
from pytest_kvoffload.records import ConnectorConfig, Measurement, PhaseResult

KEY = BaselineKey(runner="cpu / 2 / none", model="generated", engine="cpu", connector="native")
MORE = dataclasses.replace(KEY, variant="sessions=40")
CONTROL = dataclasses.replace(KEY, connector="control")
TEST, OTHER = "test_a.py::test_native", "test_a.py::test_more"
BOTH = Selection(selected=frozenset({TEST, OTHER}), finished=frozenset({TEST, OTHER}))
ABSOLUTE = ("external.hit_rate >= 0.5",)


def seeded(measurement: Measurement, seed: int) -> Measurement:
    return dataclasses.replace(measurement, workload=dataclasses.replace(measurement.workload, seed=seed))


def baseline(measurement: Measurement, key: BaselineKey, *seeds: int, tests: tuple[str, ...] = (TEST,)) -> Baseline:
    blocks = [Block(block=s, boot=0, measurement=seeded(measurement, s), tests=tests) for s in seeds or (0,)]
    return updated(None, key, blocks, commit=None)


def arms(measurement: Measurement, *keys: BaselineKey, test: str = TEST, judged: bool = True) -> list[SuiteArm]:
    uses = [Use(test=test, key=key, file=key.label, judged=judged) for key in keys]
    return suite_arms(uses, {key.label: measurement for key in keys})


def ask(found: list[SuiteArm], selection: Selection, *recorded: Baseline, texts: tuple[str, ...] = ABSOLUTE) -> Verdict:
    question = Question(
        policy=Policy(),
        thresholds=parse_thresholds(texts) or default_thresholds(Policy()),
        baselines={one.key: one for one in recorded},
        where="kvoffload-baselines",
        calibration="none",
    )
    return judge_suite(found, selection, question)


def said(verdict: Verdict) -> str:
    return "\n".join([*(f"{f.outcome} {f.name}: {f.text}" for f in verdict.findings), *verdict.notes])


def test_every_arm_is_judged_and_named(offloading: Measurement) -> None:
    verdict = ask(arms(offloading, KEY, MORE), BOTH)
    assert [f.name for f in verdict.findings if "hit_rate" in f.name] == [
        "native: external.hit_rate >= 0.5",
        "native (sessions=40): external.hit_rate >= 0.5",
    ]
    assert (verdict.outcome, verdict.candidate, verdict.requests_per_arm) == (
        "pass",
        "native, native (sessions=40)",
        30,
    )


def test_a_baseline_is_the_reference(offloading: Measurement) -> None:
    verdict = ask(arms(offloading, KEY), BOTH, baseline(offloading, KEY), texts=("ttft_p50 regression < 10% or 1s",))
    assert verdict.outcome == "pass", said(verdict)
    assert "pass native: measured as in the baseline: every measurement is there" in said(verdict)
    assert "they were not measured in this run, so what the machine did since counts as" in said(verdict)


def test_another_device_cache_than_the_baseline_is_no_pass(offloading: Measurement) -> None:
    server = dataclasses.replace(offloading.server, num_gpu_blocks=60)
    verdict = ask(arms(dataclasses.replace(offloading, server=server), KEY), BOTH, baseline(offloading, KEY))
    assert verdict.outcome == "inconclusive"
    assert "native: comparable: device cache: 640 on the reference, 960 on the candidate" in said(verdict)


def test_without_a_baseline_only_regressions_are_inconclusive(offloading: Measurement) -> None:
    verdict = ask(arms(offloading, KEY), BOTH, texts=("ttft_p50 regression < 10%", *ABSOLUTE))
    assert verdict.outcome == "inconclusive"
    outcomes = {f.name: f.outcome for f in verdict.findings}
    assert outcomes["native: external.hit_rate >= 0.5"] == "pass"
    assert outcomes["native: ttft_p50 regression < 10%"] == "inconclusive"
    assert "no comparison with reference: no baseline for connector native, model generated" in said(verdict)


@pytest.mark.parametrize(
    ("selection", "outcome", "word"),
    [
        (BOTH, "fail", "test_a.py::test_more ran and did not take it"),
        (
            Selection(selected=frozenset({TEST}), finished=frozenset({TEST})),
            "fail",
            "test_a.py::test_more, which took it, was not collected",
        ),
        (
            Selection(
                selected=frozenset({TEST}), finished=frozenset({TEST}), deselected=frozenset({OTHER}), narrowed=True
            ),
            "pass",
            "not judged: deselected: native (sessions=40) (test_a.py::test_more)",
        ),
        (
            Selection(
                selected=frozenset({TEST}),
                finished=frozenset({TEST}),
                left_out=lambda test: test == OTHER,
                narrowed=True,
            ),
            "pass",
            "not judged: deselected: native (sessions=40) (test_a.py::test_more)",
        ),
        (
            Selection(
                selected=frozenset({TEST, OTHER}), finished=frozenset({TEST}), stopped="stopping after 1 failures"
            ),
            "inconclusive",
            "the run stopped before test_a.py::test_more",
        ),
    ],
)
def test_what_the_baseline_has_and_the_run_has_not(
    offloading: Measurement, selection: Selection, outcome: str, word: str
) -> None:
    recorded = baseline(offloading, KEY), baseline(offloading, MORE, tests=(OTHER,))
    verdict = ask(arms(offloading, KEY), selection, *recorded)
    assert verdict.outcome == outcome, said(verdict)
    assert word in said(verdict)


def test_a_run_that_stopped_never_passes(offloading: Measurement) -> None:
    stopped = Selection(selected=frozenset({TEST, OTHER}), finished=frozenset({TEST}), stopped="interrupted")
    verdict = ask(arms(offloading, KEY), stopped)
    assert verdict.outcome == "inconclusive"
    assert (
        "inconclusive complete: the run stopped early (interrupted): 1 of 2 tests did not run: test_a.py::test_more"
        in said(verdict)
    )


@pytest.mark.parametrize(
    ("narrowed", "outcome", "word"),
    [(False, "fail", "no test takes it"), (True, "pass", "recorded by kvoffload baseline, which knows no test")],
)
def test_a_baseline_of_the_command_knows_no_tests(
    offloading: Measurement, narrowed: bool, outcome: str, word: str
) -> None:
    recorded = baseline(offloading, KEY, 0, 1, 2, tests=()), baseline(offloading, MORE, tests=())
    verdict = ask(arms(offloading, KEY), dataclasses.replace(BOTH, narrowed=narrowed), *recorded)
    assert verdict.outcome == outcome, said(verdict)
    assert word in said(verdict)
    assert "missing: native:" not in said(verdict)  # one of its three blocks was taken


def test_seeds_are_blocks_and_each_is_expected(offloading: Measurement) -> None:
    uses = [Use(test=TEST, key=KEY, file=str(seed)) for seed in (0, 1)]
    found = suite_arms(uses, {str(seed): seeded(offloading, seed) for seed in (0, 1)})
    (arm,) = found
    assert [block.block for block in arm.blocks] == [0, 1]
    verdict = ask(found, BOTH, baseline(offloading, KEY, 0, 1, 2), texts=("ttft_p50 regression < 10% or 1s",))
    assert verdict.outcome == "fail"
    assert "n = 60 per arm" in said(verdict)
    assert "fail missing: native, seed 2: the baseline of" in said(verdict)


def test_a_lost_phase_is_a_failure(offloading: Measurement) -> None:
    less = dataclasses.replace(offloading, phases=tuple(p for p in offloading.phases if p.name != "resident"))
    verdict = ask(arms(less, KEY), BOTH, baseline(offloading, KEY))
    assert verdict.outcome == "fail"
    assert "fail native: measured as in the baseline: the baseline has resident." in said(verdict)


@pytest.mark.parametrize(("finished", "outcome"), [(frozenset({TEST}), "fail"), (frozenset(), "inconclusive")])
def test_a_measurement_that_was_asked_for_and_did_not_come(finished: frozenset[str], outcome: str) -> None:
    found = suite_arms([Use(test=TEST, key=KEY)], {})
    verdict = ask(found, Selection(selected=frozenset({TEST}), finished=finished))
    assert verdict.outcome == outcome
    assert f"native: measured: {'asked for by' if finished else 'the run stopped while'} {TEST}" in said(verdict)


def test_a_gain_is_over_the_control_of_the_same_variant(offloading: Measurement, recomputing: Measurement) -> None:
    texts = ("ttft_p50 gain over control >= 30%",)
    control = arms(recomputing, CONTROL)
    assert "ms of control: a gain of" in said(ask([*arms(offloading, KEY), *control], BOTH, texts=texts))
    verdict = ask([*arms(offloading, MORE), *control], BOTH, texts=texts)
    assert verdict.outcome == "inconclusive"
    assert "no arm control was measured in this run" in said(verdict)


def test_a_mark_takes_a_measurement_out_and_nothing_judged_is_no_pass(offloading: Measurement) -> None:
    verdict = ask(arms(offloading, KEY, judged=False), BOTH)
    assert verdict.outcome == "inconclusive"
    assert "not judged: native: its tests say gate=False" in said(verdict)
    assert "anything judged: no test took a measurement that is to be judged" in said(verdict)


def test_failures_of_all_arms_are_one_family(offloading: Measurement) -> None:
    """What alone is just significant is held back among the innocent ones of other arms."""
    keys = [dataclasses.replace(KEY, variant=f"sessions={n}") for n in range(4)]
    slow = dataclasses.replace(offloading, phases=tuple(_slower(offloading, 6)))
    files = {key.label: offloading for key in keys[1:]} | {keys[0].label: slow}
    found = suite_arms([Use(test=TEST, key=key, file=key.label) for key in keys], files)
    alone = ask(found[:1], BOTH, texts=("ttft_p95 < 1s",))
    assert alone.outcome == "fail", said(alone)
    family = ask(found, BOTH, texts=("ttft_p95 < 1s",))
    assert family.outcome == "inconclusive", said(family)
    assert "held back: among 4 tests its p counts as" in said(family)


def _slower(measurement: Measurement, count: int) -> list[PhaseResult]:
    """Make some of the restored requests take 2 s: p = 0.0033 for 6 of 30 beyond a p95."""
    phases: list[PhaseResult] = []
    for phase in measurement.phases:
        samples = tuple(
            dataclasses.replace(
                s, first_token_at_seconds=s.sent_at_seconds + 2, last_token_at_seconds=s.sent_at_seconds + 2
            )
            if phase.name == "restored" and place < count
            else s
            for place, s in enumerate(phase.samples)
        )
        phases.append(dataclasses.replace(phase, samples=samples))
    return phases


def test_two_configurations_of_one_name_are_told(offloading: Measurement) -> None:
    other = dataclasses.replace(offloading, connector=ConnectorConfig(name="native", kind="native"))
    uses = [Use(test=TEST, key=KEY, file="a"), Use(test=OTHER, key=KEY, file="b")]
    found = suite_arms(uses, {"a": offloading, "b": other})
    verdict = ask(found, BOTH)
    assert verdict.outcome == "inconclusive"
    assert "two measurements of native with seed 0 and unlike configurations: give one of the connectors" in said(
        verdict
    )
    with pytest.raises(IncomparableError, match="two measurements of native"):
        record_suite(found, BOTH, {}, commit=None)


def test_a_narrowed_run_keeps_what_it_left_out(offloading: Measurement) -> None:
    old = baseline(offloading, KEY, 0, tests=(TEST, OTHER))
    narrow = Selection(selected=frozenset({TEST}), finished=frozenset({TEST}), narrowed=True)
    made, kept = record_suite(arms(offloading, KEY, MORE), narrow, {KEY: old}, commit="abc")
    assert [one.key for one in made] == [MORE]
    assert kept == [f"kept as it was: native: this run leaves out {OTHER}"]
    (block,) = made[0].blocks
    assert block.tests == (TEST,)


def test_a_key_without_a_variant_has_the_file_that_it_always_had() -> None:
    assert KEY.file_name == "native-1204ca9f074d.json"
    assert MORE.file_name != KEY.file_name
    assert str(MORE).startswith("connector native (sessions=40), model generated")
