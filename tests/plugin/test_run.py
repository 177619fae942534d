"""Whole runs of the plugin, against servers that are small but true (``fakes/fake_vllm.py``)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from fakes.fake_vllm import FakeConfig, FakeVLLM

assert (
    requests
)  # imported here once: pytester forgets what an in-process run imports, and cookiejars are then of two kinds

CONFIG = """
[connectors.control]
kind = "recompute"
[connectors.native]
kind = "native"
size_gib = 1
[workload]
prefix_tokens = 128
suffix_tokens = 8
output_tokens = 4
"""
TESTS = """
import pytest
pytestmark = pytest.mark.kvoffload("native", control="control")

def test_restored(kvoffload_measurement):
    restored = kvoffload_measurement.phase("restored")
    assert all(s.cached_tokens for s in restored.samples)

def test_again(kvoffload_measurement, kvoffload_measure):
    assert kvoffload_measure("native") == kvoffload_measurement

def test_control(kvoffload_control):
    assert not any(s.cached_tokens for s in kvoffload_control.phase("restored").samples)

def test_server(kvoffload_server):
    assert kvoffload_server.info.engine_kind == "attach"
"""


@pytest.fixture
def native() -> Iterator[FakeVLLM]:
    with FakeVLLM(FakeConfig(tier_blocks=800)) as server:
        yield server


@pytest.fixture
def control() -> Iterator[FakeVLLM]:
    with FakeVLLM(FakeConfig()) as server:
        yield server


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.makepyfile(test_suite=TESTS)
    return pytester


def measurements(pytester: pytest.Pytester) -> list[Path]:
    return sorted((pytester.path / ".kvoffload").glob("run-*/measurements/*.json"))


def test_a_suite_measures_each_arm_once_and_sums_up(
    suite: pytest.Pytester, native: FakeVLLM, control: FakeVLLM
) -> None:
    result = suite.runpytest(
        "--kvoffload-url", f"native={native.url}", "--kvoffload-url", f"control={control.url}", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=4)
    files = measurements(suite)
    assert [p.name.partition("-")[0] for p in files] == ["control", "native"]
    result.stdout.fnmatch_lines(
        [
            "*= kvoffload =*",
            "*arm*phase*n*dev*tier*p50*p99*store*load*same*",
            "*native*restored*",
            "*measurements and server logs: *.kvoffload*run-*",
        ]
    )
    document = json.loads(files[1].read_bytes())
    assert document["schema_version"] == 1
    assert document["complete"] is True
    assert (suite.path / ".kvoffload" / ".gitignore").read_text() == "*\n"


def test_workers_share_one_measurement(suite: pytest.Pytester, native: FakeVLLM, control: FakeVLLM) -> None:
    result = suite.runpytest_subprocess(
        "-n", "2", "--kvoffload-url", f"native={native.url}", "--kvoffload-url", f"control={control.url}"
    )
    result.assert_outcomes(passed=4)
    assert len(measurements(suite)) == 2
    result.stdout.fnmatch_lines(["*= kvoffload =*", "*native*restored*"])


def test_without_a_url_for_the_arm_the_test_is_skipped_with_the_reason(
    suite: pytest.Pytester, native: FakeVLLM
) -> None:
    result = suite.runpytest("--kvoffload-url", f"native={native.url}", "-rs")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["*no --kvoffload-url control=URL: the attached servers are native*"])


def test_a_dead_url_is_named_without_a_traceback(suite: pytest.Pytester) -> None:
    result = suite.runpytest("--kvoffload-url", "native=http://127.0.0.1:9", "-k", "restored")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*http://127.0.0.1:9*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_ctrl_c_in_the_middle_reports_what_was_measured(suite: pytest.Pytester) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=800, seconds_per_token=0.003)) as slow:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "--kvoffload-url", f"native={slow.url}", "-k", "restored"],
            cwd=suite.path,
            stdout=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 60
        while slow.completions < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "cold (interrupted)" in output
    assert "native: not complete (" in output
    (file,) = measurements(suite)
    assert json.loads(file.read_bytes())["complete"] is False


def test_old_runs_are_dropped(suite: pytest.Pytester, native: FakeVLLM) -> None:
    for number in range(8):
        (suite.path / ".kvoffload" / f"run-2020010{number}-000000-1").mkdir(parents=True)
    suite.runpytest("--kvoffload-url", f"native={native.url}", "-k", "restored").assert_outcomes(passed=1)
    kept = sorted(p.name for p in (suite.path / ".kvoffload").glob("run-*"))
    assert len(kept) == 5
    assert kept[0] == "run-20200104-000000-1"
