"""A gate run from configuration to exit code, against servers that are small but true."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM
from fakes.gate_blocks import PER_BLOCK, WORKLOAD, blocks_of

from pytest_kvoffload.errors import ServerDiedError
from pytest_kvoffload.gate.judge import judge
from pytest_kvoffload.gate.pace import Place
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.thresholds import parse_thresholds
from pytest_kvoffload.gate.verdict import Policy
from pytest_kvoffload.gate_alone import measure_arm, measure_runs
from pytest_kvoffload.gate_run import GatePlan, GateRun, run_gate
from pytest_kvoffload.output.gate_text import document, markdown, text
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, Measurement, ModelConfig, WorkloadConfig, to_json
from pytest_kvoffload.session import Arm, RunSession

MakeBlocks = Callable[..., list[Block]]
TIER = 100_000


def arm(server: FakeVLLM, label: str, kind: str = "native") -> Arm:
    options = {"size_gib": 1.0} if kind == "native" else {}
    return Arm(
        engine=EngineConfig(kind="attach", url=server.url),
        model=ModelConfig(),
        connector=ConnectorConfig(name=label, kind=kind, options=options),
        label=label,
    )


def gate(
    tmp_path: Path, reference: FakeConfig, candidate: FakeConfig, *, requests: int = 300, policy: Policy | None = None
) -> GateRun:
    with FakeVLLM(reference) as one, FakeVLLM(candidate) as two:
        plan = GatePlan(
            reference=arm(one, "reference"),
            candidate=arm(two, "candidate"),
            workload=WORKLOAD,
            policy=policy or Policy(),
            requests=requests,
            boots=1,
        )
        return run_gate(RunSession(tmp_path), plan)


class Scripted:
    """A session whose servers take the times that a test wants, whatever this machine is doing."""

    def __init__(
        self,
        measurement: Measurement,
        slower: float,
        *,
        max_live: int = 9,
        ends_at: int | None = None,
        end: BaseException | None = None,
    ) -> None:
        self._end = end or KeyboardInterrupt()
        self.asked: list[tuple[str, int, int]] = []
        self.events: list[str] = []
        self.warmed: list[tuple[str, int, int]] = []
        self.boots: list[tuple[str, int]] = []
        """Of each boot that took place: the arm, and what it was called."""
        self._measurement, self._slower, self._max_live, self._ends_at = measurement, slower, max_live, ends_at
        self._live: list[tuple[str, int]] = []

    def ready(self, arm: Arm) -> None:
        if (arm.name, arm.boot) not in self._live:
            self._live = [*self._live, (arm.name, arm.boot)][-self._max_live :]
            self.boots.append((arm.name, arm.boot))
            self.events.append(f"boot {arm.name}")

    def warm_up(self, arm: Arm, workload: WorkloadConfig) -> None:
        self.ready(arm)
        self.warmed.append((arm.name, arm.boot, workload.seed))
        self.events.append(f"warm up {arm.name}")

    def measure(self, arm: Arm, workload: WorkloadConfig) -> Measurement:
        self.ready(arm)
        if len(self.asked) == self._ends_at:
            raise self._end
        self.asked.append((arm.name, workload.seed, arm.boot))
        self.events.append(f"measure {arm.name}")
        source = random.Random(workload.seed)
        scale = self._slower if arm.name == "candidate" else 1.0
        times = [scale * 0.06 * source.lognormvariate(0.0, 0.25) for _ in range(PER_BLOCK)]
        own = random.Random(f"{arm.name} {workload.seed}")
        (block,) = blocks_of(
            self._measurement, [t * own.lognormvariate(0.0, 0.02) for t in times], name=arm.name, boots=1
        )
        return dataclasses.replace(block.measurement, workload=workload)

    def stop_servers(self) -> None:
        self._live = []
        self.asked.append(("stop", 0, 0))


def scripted_plan(measurement: Measurement, **more: object) -> GatePlan:
    one = Arm(engine=EngineConfig(), model=ModelConfig(), connector=measurement.connector)
    return GatePlan(
        reference=dataclasses.replace(one, label="reference"),
        candidate=dataclasses.replace(one, label="candidate"),
        workload=WORKLOAD,
        policy=Policy(),
        requests=600,
        **more,  # type: ignore[arg-type]
    )


def scripted(measurement: Measurement, slower: float, **more: object) -> tuple[GateRun, Scripted]:
    session = Scripted(measurement, slower, max_live=9 if more.get("side_by_side", True) else 1)
    return run_gate(session, scripted_plan(measurement, **more)), session  # type: ignore[arg-type]


def test_a_slower_tier_is_blocked_and_stops_early(offloading: Measurement) -> None:
    result, _ = scripted(offloading, 2.0)
    verdict = result.verdict
    assert verdict.outcome == "fail", text(verdict)
    assert verdict.exit_code == 1
    tail = verdict.findings[-1].tail
    assert tail is not None
    assert tail.decision == "worse"
    assert tail.ratio_low > 1.1
    assert verdict.requests_per_arm < 600
    assert "stopped early" in verdict.notes[0]
    assert json.loads(to_json(verdict))["schema_version"] == 1


def test_an_equal_tier_passes(offloading: Measurement) -> None:
    result, _ = scripted(offloading, 1.0)
    assert result.verdict.outcome == "pass", text(result.verdict)


def test_arms_take_turns_and_both_are_booted_again(offloading: Measurement) -> None:
    result, session = scripted(offloading, 1.08, boots=2)
    asked = [one for one in session.asked if one[0] != "stop"]
    assert sorted(seed for name, seed, _ in asked if name == "reference") == list(
        range(result.verdict.requests_per_arm // PER_BLOCK)
    )
    assert sorted(one[1:] for one in asked if one[0] == "reference") == sorted(
        one[1:] for one in asked if one[0] == "candidate"
    )
    begins = {boot: [name for name, _, b in asked if b == boot][:4] for boot in (0, 1)}
    assert begins[0] == ["reference", "candidate", "candidate", "reference"]
    assert begins[1] == ["candidate", "reference", "reference", "candidate"], "what comes first and last in a boot"
    assert {boot for *_, boot in asked} == {0, 1}


def test_fewer_blocks_than_boots_are_said(offloading: Measurement) -> None:
    session = Scripted(offloading, 1.0)
    plan = dataclasses.replace(scripted_plan(offloading, boots=5), requests=60)
    verdict = run_gate(session, plan).verdict  # type: ignore[arg-type]
    assert verdict.boots_per_arm == 2
    said = "2 instead of 5 boots per arm: 60 requests are 2 blocks of 30, and a boot replays one at least"
    assert said in verdict.notes


def test_both_servers_are_up_before_the_first_turn(offloading: Measurement) -> None:
    """A boot takes minutes: between two turns it would part them, and what the machine does meanwhile."""
    _, session = scripted(offloading, 1.08, boots=2)
    turns = "".join(word[0] for word in session.events)
    assert turns.count("b") == 4
    assert turns.startswith("bbwwm")
    assert [name for name, _ in session.boots] == ["reference", "candidate", "candidate", "reference"]
    assert "bmb" not in turns


@pytest.mark.parametrize("side_by_side", [True, False])
def test_what_comes_first_after_a_boot_is_not_counted(offloading: Measurement, side_by_side: bool) -> None:
    """On real vLLM the first arm to be measured was slower by a tenth for some seconds, in each of five runs."""
    result, session = scripted(offloading, 1.08, boots=2, side_by_side=side_by_side)
    assert [one[:2] for one in session.warmed] == session.boots, "each boot has a warm-up of its own"
    counted = {block.measurement.workload.seed for block in (*result.reference, *result.candidate)}
    assert counted.isdisjoint(seed for *_, seed in session.warmed)
    for place, event in enumerate(session.events):
        if event.startswith("measure"):
            warm = event.replace("measure", "warm up")
            boot = event.replace("measure", "boot")
            before = session.events[:place][::-1]
            assert before.index(warm) < before.index(boot)


def test_one_server_at_a_time_counts_each_boot_and_boots_no_arm_that_lives(offloading: Measurement) -> None:
    result, session = scripted(offloading, 1.08, boots=2, side_by_side=False)
    assert len(set(session.boots)) == len(session.boots), "two boots went by one name"
    labels = {
        name: {b.boot for b in blocks}
        for name, blocks in (("reference", result.reference), ("candidate", result.candidate))
    }
    assert labels == {name: {boot for n, boot in session.boots if n == name} for name in ("reference", "candidate")}
    # A | B, then B (alive) | A, ...: in each round after the first of a boot, one arm lives on.
    rounds = len([word for word in session.events if word.startswith("boot")])
    assert rounds == 7, session.boots
    assert result.verdict.boots_per_arm >= 2


def test_the_same_again_is_not_blocked(tmp_path: Path) -> None:
    same = FakeConfig(tier_blocks=TIER, seconds_per_load=0.01)
    verdict = gate(tmp_path, same, dataclasses.replace(same), requests=60).verdict
    assert verdict.outcome in {"pass", "inconclusive"}, text(verdict)


def test_a_tier_that_is_silently_off_fails_by_name(tmp_path: Path) -> None:
    verdict = gate(tmp_path, FakeConfig(tier_blocks=TIER), FakeConfig(tier_blocks=0), requests=60).verdict
    assert verdict.outcome == "fail"
    (finding,) = verdict.findings
    assert finding.name == "tier exercised"
    assert "the tier of candidate was never reached: 0 of" in finding.text


def test_a_candidate_that_fails_at_once_costs_no_boot_of_the_control(tmp_path: Path) -> None:
    fast = FakeConfig(tier_blocks=TIER)
    with FakeVLLM(fast) as one, FakeVLLM(FakeConfig(tier_blocks=0)) as two, FakeVLLM(FakeConfig()) as three:
        plan = GatePlan(
            reference=arm(one, "reference"),
            candidate=arm(two, "candidate"),
            others={"control": arm(three, "control", "recompute")},
            thresholds=parse_thresholds(["ttft_p50 gain over control >= 30%"]),
            workload=WORKLOAD,
            policy=Policy(),
            requests=60,
            boots=1,
        )
        result = run_gate(RunSession(tmp_path), plan)
        asked = three.completions
    assert result.verdict.findings[0].name == "tier exercised"
    assert (asked, result.others["control"]) == (0, ())


def test_a_server_that_ran_before_needs_no_warm_up(tmp_path: Path) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=TIER)) as server:
        RunSession(tmp_path).warm_up(arm(server, "candidate"), WORKLOAD)
        assert server.completions == 0


def test_failed_requests_on_the_candidate_fail(tmp_path: Path) -> None:
    verdict = gate(tmp_path, FakeConfig(tier_blocks=TIER), FakeConfig(tier_blocks=TIER, fail_every=7)).verdict
    assert verdict.outcome == "fail"
    assert verdict.findings[0].name == "usable candidate"
    assert "failed requests, the first:" in verdict.findings[0].text


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_gpu_blocks": 60}, "device cache: 640 on the reference, 960 on the candidate"),
        ({"version": "0.31.0"}, "vllm: 0.32.0 on the reference, 0.31.0 on the candidate"),
        ({"model": "other"}, "model: fake-model on the reference, other on the candidate"),
    ],
)
def test_unlike_arms_are_refused(tmp_path: Path, change: dict[str, object], word: str) -> None:
    same = FakeConfig(tier_blocks=TIER)
    verdict = gate(tmp_path, same, dataclasses.replace(same, **change), requests=60).verdict  # type: ignore[arg-type]
    assert verdict.outcome == "inconclusive"
    assert verdict.exit_code == 3
    assert word in verdict.findings[0].text


@pytest.mark.parametrize(("arm_name", "where"), [("candidate", "boot 2 of the candidate"), ("reference", "its boot 2")])
def test_a_server_that_comes_up_otherwise_at_its_second_boot_is_refused(
    make_blocks: MakeBlocks, arm_name: str, where: str
) -> None:
    """vLLM sizes the device cache by what is free, so that two boots need not have the same."""
    arms = {name: make_blocks([0.05] * 120, name=name) for name in ("reference", "candidate")}
    last = arms[arm_name][-1].measurement
    server = dataclasses.replace(last.server, num_gpu_blocks=41)
    arms[arm_name][-1] = dataclasses.replace(arms[arm_name][-1], measurement=dataclasses.replace(last, server=server))
    (found,) = judge(arms["reference"], arms["candidate"], policy=Policy())
    assert (found.name, found.outcome) == ("comparable", "inconclusive")
    assert re.search(rf"^device cache: \d+ on the reference, 656 on {where} \(num_gpu_blocks of \[engine\]", found.text)


def test_two_versions_are_compared_where_that_is_the_question_and_both_are_named(tmp_path: Path) -> None:
    old, new = FakeConfig(tier_blocks=TIER, version="0.27.1"), FakeConfig(tier_blocks=TIER)
    with FakeVLLM(old) as one, FakeVLLM(new) as two:
        plan = GatePlan(
            reference=arm(one, "reference"),
            candidate=arm(two, "candidate"),
            workload=WORKLOAD,
            policy=Policy(),
            thresholds=parse_thresholds(["external.hit_rate >= 0.5"]),
            requests=30,
            boots=1,
            across=("vllm",),
        )
        verdict = run_gate(RunSession(tmp_path), plan).verdict
    assert verdict.outcome == "pass", text(verdict)
    assert "vLLM 0.27.1 on the reference, 0.32.0 on the candidate" in verdict.notes


def test_too_few_requests_are_inconclusive(tmp_path: Path) -> None:
    same = FakeConfig(tier_blocks=TIER)
    verdict = gate(tmp_path, same, dataclasses.replace(same), requests=30).verdict
    assert verdict.outcome == "inconclusive"


def test_the_control_takes_turns_in_the_same_run(tmp_path: Path) -> None:
    fast, slow = FakeConfig(tier_blocks=TIER), FakeConfig(seconds_per_token=0.0005)
    with FakeVLLM(fast) as one, FakeVLLM(dataclasses.replace(fast)) as two, FakeVLLM(slow) as three:
        plan = GatePlan(
            reference=arm(one, "reference"),
            candidate=arm(two, "candidate"),
            others={"control": arm(three, "control", "recompute")},
            thresholds=parse_thresholds(["ttft_p50 gain over control >= 30%", "external.hit_rate >= 0.5"]),
            workload=WORKLOAD,
            policy=Policy(),
            requests=60,
            boots=1,
        )
        result = run_gate(RunSession(tmp_path), plan)
    assert result.verdict.outcome in {"pass", "inconclusive"}, text(result.verdict)
    assert "ms of control: a gain of" in result.verdict.findings[1].text
    names = [finding.name for finding in result.verdict.findings]
    assert names == ["tier exercised", "ttft_p50 gain over control >= 30%", "external.hit_rate >= 0.5"]
    assert [b.block for b in result.others["control"]] == [b.block for b in result.candidate]
    seeds = [[b.measurement.workload.seed for b in arm] for arm in (result.reference, result.others["control"])]
    assert seeds[0] == seeds[1]


@pytest.mark.parametrize(("dead", "outcome"), [("candidate", "fail"), ("reference", "inconclusive")])
def test_a_server_that_is_not_there_ends_the_run_with_a_verdict(tmp_path: Path, dead: str, outcome: str) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=TIER)) as server:
        with FakeVLLM(FakeConfig()) as gone:
            pass
        arms = {"reference": arm(server, "reference"), "candidate": arm(server, "candidate")}
        arms[dead] = arm(gone, dead)
        plan = GatePlan(**arms, workload=WORKLOAD, policy=Policy(), requests=60, boots=1)  # type: ignore[arg-type]
        verdict = run_gate(RunSession(tmp_path), plan).verdict
    assert verdict.outcome == outcome
    assert verdict.exit_code == 4
    (finding,) = verdict.findings
    assert finding.name == f"{dead} measured"
    assert gone.url.removeprefix("http://") in finding.text
    written = json.loads(document(verdict))
    assert (written["kind"], written["schema_version"], written["outcome"], written["exit_code"]) == (
        "kvoffload-verdict",
        1,
        outcome,
        4,
    )


def test_an_interrupted_run_says_so_and_never_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: RunSession, arm: Arm, workload: WorkloadConfig) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunSession, "measure", interrupt)
    verdict = gate(tmp_path, FakeConfig(), FakeConfig()).verdict
    assert (verdict.outcome, verdict.exit_code) == ("inconclusive", 130)
    assert "interrupted before a verdict was reached" in text(verdict)


def test_what_was_measured_until_an_interruption_is_counted(offloading: Measurement) -> None:
    session = Scripted(offloading, 1.0, ends_at=5)  # A B, B A, A: the third block is on one arm only
    verdict = run_gate(session, scripted_plan(offloading)).verdict  # type: ignore[arg-type]
    assert (verdict.outcome, verdict.exit_code) == ("inconclusive", 130)
    assert verdict.requests_per_arm == 2 * PER_BLOCK
    assert verdict.spread is not None


@pytest.mark.parametrize(("ends_at", "who", "outcome"), [(5, "candidate", "fail"), (4, "reference", "inconclusive")])
def test_a_server_that_dies_in_the_middle_ends_the_run_with_what_was_measured(
    offloading: Measurement, ends_at: int, who: str, outcome: str
) -> None:
    session = Scripted(offloading, 1.0, ends_at=ends_at, end=ServerDiedError("EngineCore: out of memory"))
    verdict = run_gate(session, scripted_plan(offloading)).verdict  # type: ignore[arg-type]
    assert (verdict.outcome, verdict.exit_code, verdict.requests_per_arm) == (outcome, 4, 2 * PER_BLOCK)
    assert f"{who} measured: EngineCore: out of memory" in text(verdict)
    assert f"the run ended at {who}" in text(verdict)


def test_a_gain_over_an_arm_whose_tier_never_served_is_none(tmp_path: Path, make_blocks: MakeBlocks) -> None:
    """An arm that is slow because its own tier is off is easily beaten."""
    with FakeVLLM(FakeConfig(tier_blocks=0)) as server:
        off = RunSession(tmp_path).measure(arm(server, "large"), WORKLOAD)
    idle = make_blocks([0.2] * 120, name="large", of=off)
    same = make_blocks([0.05] * 120, name="reference")
    found = judge(
        same,
        make_blocks([0.05] * 120, name="candidate"),
        policy=Policy(),
        thresholds=parse_thresholds(["ttft_p50 gain over large >= 30%"], arms=("large",)),
        others={"large": idle},
    )
    assert found[-1].outcome == "inconclusive"
    assert "no comparison with large: the tier of large was never reached" in found[-1].text


@pytest.fixture
def hostile(tmp_path: Path) -> GateRun:
    return gate(tmp_path, FakeConfig(tier_blocks=TIER, model="<script>|x"), FakeConfig(tier_blocks=TIER), requests=30)


def test_text_from_servers_is_no_markup(hostile: GateRun) -> None:
    assert "<script>" not in markdown(hostile.verdict)
    assert "| comparable | INCONCLUSIVE |" in markdown(hostile.verdict)


def test_a_run_says_where_it_is(offloading: Measurement) -> None:
    places: list[Place] = []
    session = Scripted(offloading, 1.0)
    run_gate(session, scripted_plan(offloading, boots=2), watch=places.append)  # type: ignore[arg-type]
    assert [(p.arm, p.block) for p in places[:2]] == [("reference", None), ("candidate", None)], "two warm-ups"
    places = [place for place in places if place.block is not None]
    first, second, third, *_ = places
    assert (first.arm, first.block, first.blocks, first.requests) == ("reference", 1, None, None)
    assert (second.arm, second.block) == ("candidate", 1)
    assert (third.arm, third.block, third.blocks, third.done, third.requests) == ("candidate", 2, 20, 30, 600)
    assert third.seconds_left is not None
    assert [p.done for p in places if p.arm == "candidate"] == [30 * i for i in range(len(places) // 2)]


def test_a_calibration_and_a_baseline_say_where_they_are(offloading: Measurement) -> None:
    places: list[Place] = []
    session, plan = Scripted(offloading, 1.0), scripted_plan(offloading, boots=2)
    runs = measure_runs(session, plan, boots=3, watch=places.append)  # type: ignore[arg-type]
    assert [len(run) for run in runs] == [10, 10, 10], "each boot replays what an arm of the gate would in one boot"
    last = places[-1]
    assert (last.arm, last.block, last.blocks, last.done, last.requests) == ("boot 3 of 3", 30, 30, 870, 900)
    assert len(measure_runs(session, plan, boots=3, fewest=400)[0]) == 14  # type: ignore[arg-type]
    places.clear()
    blocks = measure_arm(session, plan, watch=places.append)  # type: ignore[arg-type]
    assert [block.boot for block in blocks] == [0] * 10 + [1] * 10
    assert (places[-1].arm, places[-1].block, places[-1].done) == ("boot 2 of 2", 20, 570)
