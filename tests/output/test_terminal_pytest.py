"""What a person sees of a pytest run: recorded on pseudo-terminals of 80 and 160 columns."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM
from fakes.terminal import Recording, record

CONFIG = """
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
from pytest_kvoffload import assert_hit_rate_above

pytestmark = pytest.mark.kvoffload("native")

def test_first():
    pass

def test_green(kvoffload_measurement):
    assert_hit_rate_above(kvoffload_measurement, 0.6)

def test_red(kvoffload_measurement):
    assert_hit_rate_above(kvoffload_measurement, 0.6, tier="device")
"""
PROGRESS = re.compile(
    r"^kvoffload: native cold: \d+/12(?: requests)?, [\d.]+/s, hit rate 0\.00, TTFT p50 [\d.]+ ms$", re.MULTILINE
)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeVLLM]:
    with FakeVLLM(FakeConfig(tier_blocks=800, seconds_per_token=0.0002)) as fake:
        yield fake


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite")
    (path / "kvoffload.toml").write_text(CONFIG)
    (path / "test_suite.py").write_text(TESTS)
    return path


def command(server: FakeVLLM, *words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("--kvoffload-url", f"native={server.url}", *words),
    ]


@pytest.fixture(scope="module", params=[80, 160])
def seen(request: pytest.FixtureRequest, server: FakeVLLM, folder: Path) -> Recording:
    """The same run twice: in colour on a narrow terminal, without colours on a wide one."""
    environment = {} if request.param == 80 else {"NO_COLOR": "1"}
    return record(command(server), columns=request.param, cwd=folder, environment=environment)


def test_progress_says_arm_phase_requests_rate_hit_rate_and_ttft(seen: Recording) -> None:
    assert PROGRESS.search("\n".join(seen.frames)), seen.frames
    assert any(frame.startswith("kvoffload: native restored: 12/12") for frame in seen.frames)


def test_progress_is_wiped_and_pytests_line_stays(seen: Recording) -> None:
    assert not any(re.match(r"kvoffload: native \w+: ", line) for line in seen.screen)
    (line,) = [line for line in seen.screen if line.startswith("test_suite.py ")][:1]
    assert re.fullmatch(r"test_suite\.py \.\.F +\[100%\]", line)
    assert seen.columns - 1 <= len(line) <= seen.columns


def test_no_line_of_ours_is_wider_than_the_terminal(seen: Recording) -> None:
    start = next(i for i, line in enumerate(seen.screen) if re.fullmatch(r"=+ kvoffload =+", line))
    end = next(i for i, line in enumerate(seen.screen) if "short test summary" in line)  # pytest's own from there on
    ours = list(seen.screen[start:end])
    ours += [frame for frame in seen.frames if frame.startswith("kvoffload: native")]
    assert [line for line in ours if len(line) > seen.columns] == []


def test_the_summary_can_be_read_at_its_width(seen: Recording) -> None:
    start = next(i for i, line in enumerate(seen.screen) if re.fullmatch(r"=+ kvoffload =+", line))
    head = seen.screen[start + 1].split()
    rows = [line.split() for line in seen.screen[start + 3 : start + 6]]
    assert [row[:2] for row in rows] == [["native", "cold"], ["native", "resident"], ["native", "restored"]]
    if seen.columns == 80:
        assert head == ["arm", "phase", "n", "dev", "tier", "p50/p95/p99", "store", "load", "same"]
        assert "p50 to p99: TTFT; dev, tier: hits of device and tier over prompt tokens" in seen.screen
    else:
        titles = " ".join(head)
        assert "device hits tier hits TTFT p50 TTFT p95 TTFT p99 stored loaded same output" in titles
        assert "[a, b] 95 % interval by order statistics, no distribution assumed" in seen.text
    assert re.search(r"^measurements and server logs: \.kvoffload/run-[\d-]+$", seen.text, re.MULTILINE)


def test_a_red_assertion_shows_the_line_of_the_test_and_nothing_of_ours(seen: Recording) -> None:
    assert '>       assert_hit_rate_above(kvoffload_measurement, 0.6, tier="device")' in seen.text
    assert "pytest_kvoffload/assertions" not in seen.text
    assert "test_suite.py:14: MeterAssertionError" in seen.text
    assert (
        "the hit rate of tier device in phase 'restored' of 'native' is 0.000, asked for is more than 0.6" in seen.text
    )
    (line,) = [line for line in seen.screen if line.startswith("FAILED")]
    assert line.startswith("FAILED test_suite.py::test_red - assert_hit_rate_above: the hit")


def test_no_color_takes_the_colours_and_leaves_the_progress(seen: Recording) -> None:
    assert bool(seen.colours) is (seen.columns == 80)


def test_no_progress_takes_the_progress_and_leaves_the_rest(server: FakeVLLM, folder: Path) -> None:
    quiet = record(command(server, "-k", "green", "--kvoffload-no-progress"), columns=80, cwd=folder)
    assert quiet.code == 0
    assert quiet.colours  # the rest of the run is as ever
    assert "TTFT p50" not in quiet.raw
    assert not any(frame.startswith("kvoffload: native") for frame in quiet.frames)


def test_without_a_terminal_there_is_no_progress_and_no_escape(server: FakeVLLM, folder: Path) -> None:
    done = subprocess.run(command(server, "-k", "green"), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout
    assert "TTFT p50" not in done.stdout
    assert re.search(r"^native +restored +12 ", done.stdout, re.MULTILINE)
