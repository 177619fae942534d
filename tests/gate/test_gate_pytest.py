"""``pytest --kvoffload-gate``: whole runs against servers that are small but true; texts and exit codes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import scipy.stats
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.gate.baseline import BaselineKey, save, updated
from pytest_kvoffload.gate.calibration import this_runner
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate_hooks import INCONCLUSIVE_STATUS
from pytest_kvoffload.gate_inputs import CommandPaths, plain_id, variant_of
from pytest_kvoffload.records import EngineConfig, Measurement, WorkloadConfig, to_json

# Imported here once: pytester forgets what a run inside this process imports, and neither likes to be imported twice.
assert requests
assert scipy.stats

WORKLOAD = "[workload]\nprefix_tokens = 64\nsuffix_tokens = 8\noutput_tokens = 1\n"
CONNECTORS = '[connectors.control]\nkind = "recompute"\n[connectors.native]\nkind = "native"\nsize_gib = 1\n'
SUITE = """
import pytest

@pytest.mark.kvoffload("native")
def test_native(kvoffload_measurement):
    assert kvoffload_measurement.complete

@pytest.mark.kvoffload("native", workload={"sessions": 14})
def test_more_sessions(kvoffload_measurement):
    assert kvoffload_measurement.complete
"""
STAND_IN = """
import dataclasses
import hashlib
from pathlib import Path

import pytest
from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.records import measurement_from_json, to_json
from pytest_kvoffload.session import RunSession

def measure(self, arm, workload):
    if workload.turns > 1:
        raise WorkloadError("staged: it cannot be planned")
    digest = hashlib.sha256(to_json(workload)).hexdigest()[:12]
    path = self.run_dir / "measurements" / f"{arm.key}-{digest}.json"
    one = dataclasses.replace(
        measurement_from_json(Path(__file__).with_name("measurement.json").read_bytes()),
        arm=arm.name, connector=arm.connector, workload=workload, artefacts={"measurement": str(path)},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_json(one))
    return one

@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(RunSession, "measure", measure)
"""
TESTS = ("one/test_one.py::test_a", "one/test_one.py::TestB::test_c[x]", "two/test_two.py::test_d")
ABSOLUTE = ("ttft_p50 < 2s", "external.hit_rate >= 0.5")


@pytest.fixture
def native() -> Iterator[FakeVLLM]:
    with FakeVLLM(FakeConfig(tier_blocks=100_000)) as server:
        yield server


class Suite:
    """A folder with a configuration, tests, and servers that run."""

    def __init__(self, pytester: pytest.Pytester, **servers: FakeVLLM) -> None:
        self.pytester = pytester
        self.urls = [w for n, server in servers.items() for w in ("--kvoffload-url", f"{n}={server.url}")]
        self.configure()
        self.tests(SUITE)

    def configure(self, *thresholds: str, sessions: int = 12) -> None:
        gate = f"[gate]\nthresholds = {json.dumps(list(thresholds))}\n" if thresholds else ""
        (self.pytester.path / "kvoffload.toml").write_text(CONNECTORS + WORKLOAD + f"sessions = {sessions}\n" + gate)

    def tests(self, text: str, name: str = "test_suite.py") -> None:
        path = self.pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run(self, *words: str) -> pytest.RunResult:
        run = self.pytester.runpytest_subprocess if "-n" in words else self.pytester.runpytest_inprocess
        return run(*words, *self.urls, "-p", "no:cacheprovider")

    def gate(self, *words: str) -> tuple[pytest.RunResult, str]:
        result = self.run("--kvoffload-gate", *words)
        section = result.stdout.str().partition("= kvoffload gate =")[2]
        return result, section

    def verdict(self) -> dict[str, Any]:
        newest = max(self.pytester.path.glob(".kvoffload/run-*/verdict.json"), key=lambda p: p.stat().st_mtime_ns)
        return json.loads(newest.read_text())  # type: ignore[no-any-return]


@pytest.fixture
def suite(pytester: pytest.Pytester, offloading: Measurement) -> Suite:
    """A suite whose measurements cost nothing: each is the one that was taken of a fake server."""
    (pytester.path / "measurement.json").write_bytes(to_json(offloading))
    (pytester.path / "conftest.py").write_text(STAND_IN)
    return Suite(pytester)


@pytest.fixture
def true_suite(pytester: pytest.Pytester, native: FakeVLLM) -> Suite:
    return Suite(pytester, native=native)


@pytest.fixture
def recorded(suite: Suite, offloading: Measurement) -> Suite:
    """A suite whose baselines lie in the folder."""
    suite.configure(*ABSOLUTE)
    for test, variant in (("test_native", ""), ("test_more_sessions", "sessions=14")):
        key = BaselineKey(runner=this_runner(), model="generated", engine="cpu", connector="native", variant=variant)
        sessions = 14 if variant else 12
        workload = WorkloadConfig(prefix_tokens=64, suffix_tokens=8, output_tokens=1, sessions=sessions)
        block = Block(
            block=0,
            boot=0,
            measurement=dataclasses.replace(offloading, workload=workload),
            tests=(f"test_suite.py::{test}",),
        )
        save(suite.pytester.path / "kvoffload-baselines", updated(None, key, [block], commit=None))
    return suite


def test_a_run_whose_measurements_keep_the_thresholds_passes(true_suite: Suite) -> None:
    true_suite.configure(*ABSOLUTE)
    result, section = true_suite.gate()
    assert result.ret == 0, section
    assert re.search(r"^PASS +native: external\.hit_rate >= 0\.5: restored\.external\.hit_rate 0\.\d+", section, re.M)
    assert re.search(r"^PASS +native \(sessions=14\): ttft_p50 < 2s: ", section, re.M)
    assert "verdict: PASS" in section
    document = true_suite.verdict()
    assert (document["kind"], document["schema_version"], document["outcome"]) == ("kvoffload-verdict", 1, "pass")
    assert f"evidence: {true_suite.pytester.path}" in section


def test_a_broken_threshold_makes_a_green_run_red(suite: Suite) -> None:
    suite.configure("external.hit_rate >= 1.0")
    result, section = suite.gate()
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert re.search(r"^FAIL +native: external\.hit_rate >= 1\.0: .*asked for >= 1$", section, re.M)
    assert "verdict: FAIL" in section
    assert suite.verdict()["outcome"] == "fail"


def test_a_regression_without_a_baseline_is_inconclusive_and_says_what_to_do(suite: Suite) -> None:
    result, section = suite.gate("-k", "test_native")
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == INCONCLUSIVE_STATUS == 103
    assert "no comparison with reference: no baseline for connector native" in section
    assert "record one with pytest --kvoffload-baseline-update" in section
    assert "verdict: INCONCLUSIVE" in section
    assert suite.verdict()["exit_code"] == 3


def test_a_slower_tier_is_blocked_by_the_baseline(true_suite: Suite, native: FakeVLLM) -> None:
    true_suite.configure("ttft_p50 regression < 10%", sessions=40)
    true_suite.tests(SUITE.partition('@pytest.mark.kvoffload("native", w')[0])
    assert true_suite.run("--kvoffload-baseline-update").ret == 0
    native.config.seconds_per_load = 0.08
    result, section = true_suite.gate()
    assert result.ret == 1
    assert re.search(r"^FAIL +native: ttft_p50 regression < 10%: p50 .*slower by more than the margin", section, re.M)
    assert "they were not measured in this run, so what the machine did since counts as the candidate's" in section


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_what_a_test_no_longer_measures_is_missing(recorded: Suite, workers: tuple[str, ...]) -> None:
    recorded.tests(SUITE.replace("(kvoffload_measurement):\n    assert kvoffload_measurement.complete", "(): pass", 1))
    result, section = recorded.gate(*workers)
    result.assert_outcomes(passed=2)
    assert result.ret == 1
    assert re.search(
        r"^FAIL +missing: native: the baseline of .* has it, this run has not: test_suite\.py::test_native ran and "
        r"did not take it$",
        section,
        re.M,
    )
    assert section.count("verdict: FAIL") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("-k", "not more"),
        ("-k", "not more", "-n", "2"),
        ("--deselect", "test_suite.py::test_more_sessions"),
        ("test_suite.py::test_native",),
    ],
)
def test_what_the_command_line_deselects_is_not_judged(recorded: Suite, words: tuple[str, ...]) -> None:
    result, section = recorded.gate(*words)
    assert result.ret == 0, section
    assert "not judged: deselected: native (sessions=14) (test_suite.py::test_more_sessions)" in section
    assert re.search(r"^PASS +native: external\.hit_rate >= 0\.5", section, re.M)
    assert "verdict: PASS" in section


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_run_that_stops_at_the_first_failure_says_so(recorded: Suite, workers: tuple[str, ...]) -> None:
    recorded.tests("def test_bad(): assert False\n", "test_a.py")
    result, section = recorded.gate("-x", *workers)
    assert result.ret in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}
    assert "INCONCLUSIVE  complete: the run stopped early (stopping after 1 failures): " in section
    assert "missing: native (sessions=14): the baseline of" in section
    assert "the run stopped before test_suite.py::test_more_sessions" in section
    assert "verdict: INCONCLUSIVE" in section
    assert "PASS          missing" not in section
    assert suite_outcome(recorded) == ("inconclusive", 3)


def test_a_measurement_that_failed_is_no_pass(suite: Suite) -> None:
    """Even where the test expects its own failure."""
    suite.configure(*ABSOLUTE)
    suite.tests(
        SUITE.replace('{"sessions": 14}', '{"turns": 2}').replace("def test_m", "@pytest.mark.xfail\ndef test_m")
    )
    result, section = suite.gate()
    assert result.ret == 1, section
    assert "FAIL          native (turns=2): measured: asked for by test_suite.py::test_more_sessions, and no" in section


FLAKY = """
import pytest
from pathlib import Path

def fails_first():
    attempts = Path(__file__).with_name("attempts.txt")
    attempts.write_text((attempts.read_text() if attempts.exists() else "") + "x")
    assert attempts.read_text() != "x", "it fails the first time"

@pytest.mark.kvoffload("native")
def test_native(request):
    {before}
    assert request.getfixturevalue("kvoffload_measurement").complete
    {after}
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_test_that_passes_on_its_rerun_is_counted_once(suite: Suite, place: str, workers: tuple[str, ...]) -> None:
    """Whether it failed before it measured or after."""
    suite.configure(*ABSOLUTE)
    suite.tests(FLAKY.format(**{"before": "pass", "after": "pass", place: "fails_first()"}))
    result, section = suite.gate("--reruns", "1", *workers)
    result.stdout.fnmatch_lines(["*1 passed, 1 rerun*"])
    assert result.ret == 0, section
    assert re.search(r"^PASS +native: external\.hit_rate >= 0\.5: ", section, re.M)
    assert section.count("native: external.hit_rate") == 1
    assert "complete:" not in section
    assert suite.verdict()["verdict"]["requests_per_arm"] == 30  # one measurement, not two


def test_a_test_that_fails_on_its_rerun_too_leaves_its_measurement_judged_and_the_run_red(suite: Suite) -> None:
    suite.configure("external.hit_rate >= 1.0")
    suite.tests(FLAKY.format(before="pass", after='assert False, "always"'))
    result, section = suite.gate("--reruns", "2")
    result.stdout.fnmatch_lines(["*1 failed, 2 rerun*"])
    assert result.ret == 1
    assert section.count("FAIL          native: external.hit_rate >= 1.0") == 1


def test_a_measurement_that_fails_on_every_rerun_is_no_pass(suite: Suite) -> None:
    suite.configure(*ABSOLUTE)
    suite.tests(
        SUITE.partition('@pytest.mark.kvoffload("native", w')[0].replace(
            '"native")', '"native", workload={"turns": 2})'
        )
    )
    result, section = suite.gate("--reruns", "1")
    assert result.ret == 1
    assert (
        section.count("FAIL          native (turns=2): measured: asked for by test_suite.py::test_native, and no") == 1
    )


def test_nothing_measured_is_no_pass(suite: Suite) -> None:
    suite.tests("def test_other(): pass\n")
    result, section = suite.gate()
    assert result.ret == INCONCLUSIVE_STATUS
    assert "INCONCLUSIVE  anything judged: no test took a measurement that is to be judged" in section


def test_a_red_run_or_a_narrowed_one_replaces_no_baseline(recorded: Suite) -> None:
    before = {p.name: p.read_text() for p in (recorded.pytester.path / "kvoffload-baselines").iterdir()}
    recorded.tests("def test_bad(): assert False\n", "test_z.py")
    result = recorded.run("--kvoffload-baseline-update")
    result.stdout.fnmatch_lines(["*nothing recorded: a baseline is taken from a run whose tests all pass"])
    assert {p.name: p.read_text() for p in (recorded.pytester.path / "kvoffload-baselines").iterdir()} == before


@pytest.mark.parametrize(
    ("config", "words", "said"),
    [
        ("", ["--kvoffload-baseline-update"], "*--kvoffload-gate judges by the baselines that*: give one*"),
        ('[gate]\nthresholds = ["ttft_p99 > 1s"]\n', [], "*ttft is good when low*"),
        ('[gate]\nmargn = "5%"\n', [], "*margn: got an unknown key*did you mean 'margin'*"),
    ],
)
def test_what_cannot_be_meant_ends_the_run_before_any_test(
    pytester: pytest.Pytester, config: str, words: list[str], said: str
) -> None:
    pytester.makefile(".toml", kvoffload=CONNECTORS + config)
    pytester.makepyfile("def test_a(): pass")
    result = pytester.runpytest("--kvoffload-gate", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        ([], set()),
        (["."], set()),
        (["two"], {"one/test_one.py::test_a", "one/test_one.py::TestB::test_c[x]"}),
        (["one", "two"], set()),
        (["one/test_one.py"], {"two/test_two.py::test_d"}),
        (["one/test_one.py::TestB"], {"one/test_one.py::test_a", "two/test_two.py::test_d"}),
        (["one/test_one.py::TestB::test_c"], {"one/test_one.py::test_a", "two/test_two.py::test_d"}),
        (
            ["one/test_one.py::test"],
            set(TESTS),
        ),
        (["--ignore", "two"], {"two/test_two.py::test_d"}),
        (["--ignore-glob", "*two.py"], {"two/test_two.py::test_d"}),
    ],
)
def test_what_the_paths_of_a_command_line_leave_out(
    pytester: pytest.Pytester, words: list[str], left_out: set[str]
) -> None:
    for name in ("one/test_one.py", "two/test_two.py", "pytest.ini"):
        (pytester.path / name).parent.mkdir(exist_ok=True)
        (pytester.path / name).write_text("[pytest]\n" if name == "pytest.ini" else "")
    paths = CommandPaths(pytester.parseconfig(*words))
    assert {test for test in TESTS if paths.leave_out(test)} == left_out
    assert paths.narrow == (words not in ([], ["."]))


def test_a_variant_names_what_a_test_overrides_and_no_secret() -> None:
    usual = WorkloadConfig(), EngineConfig()
    assert variant_of(*usual, usual=usual) == ""
    assert variant_of(WorkloadConfig(seed=3), EngineConfig(), usual=usual) == ""
    said = variant_of(
        WorkloadConfig(sessions=24, turns=2),
        EngineConfig(num_gpu_blocks=200, env={"TOKEN": "hunter2"}),
        usual=usual,
    )
    assert said.startswith("sessions=24, turns=2, engine.num_gpu_blocks=200, engine.env=")
    assert "hunter2" not in said
    assert "TOKEN" not in said


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("a.py::test_b@group", "a.py::test_b"),
        ("a.py::test_b[x@y]", "a.py::test_b[x@y]"),
        ("a@b/c.py::test_b", "a@b/c.py::test_b"),
    ],
)
def test_a_node_id_without_the_group_of_a_scheduler(written: str, plain: str) -> None:
    assert plain_id(written) == plain


def suite_outcome(suite: Suite) -> tuple[str, int]:
    document = suite.verdict()
    return document["outcome"], document["exit_code"]
