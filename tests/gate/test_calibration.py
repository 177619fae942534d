"""The noise floor: computed from boots of one arm, recorded by runner and question; a margin below it is refused."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.cli import main
from pytest_kvoffload.errors import IncomparableError, UsageError
from pytest_kvoffload.gate.calibration import (
    CALIBRATION_FILE,
    Calibration,
    calibrate,
    check_margin,
    regressions,
    save,
    this_runner,
)
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.thresholds import parse_thresholds
from pytest_kvoffload.gate.verdict import Policy

MakeBlocks = Callable[..., list[Block]]
P90 = parse_thresholds(["ttft_p90 regression < 10%"])
BOTH = parse_thresholds(["ttft_p90 regression < 10%", "ttft_p99 regression < 10%", "hit_rate >= 0.5"])


def runs_of(make_blocks: MakeBlocks, *scales: float) -> list[list[Block]]:
    """Boots of one arm that differ by a factor."""
    source = random.Random(1)
    times = [0.05 * source.lognormvariate(0.0, 0.2) for _ in range(120)]
    return [make_blocks([scale * t for t in times], name="calibration") for scale in scales]


def floors(make_blocks: MakeBlocks, *scales: float) -> tuple[Calibration, ...]:
    asked = regressions(Policy(), BOTH)
    return calibrate(runs_of(make_blocks, *scales), asked=asked, confidence=0.95, boots_per_arm=2)


def test_every_regression_that_is_asked_has_a_floor_of_its_own(make_blocks: MakeBlocks, tmp_path: Path) -> None:
    found = floors(make_blocks, 1.0, 1.01, 0.99, 1.0)
    assert [c.label for c in found] == ["restored.ttft_p90", "restored.ttft_p99"]
    file = tmp_path / CALIBRATION_FILE
    save(file, this_runner(), found[:1])
    save(file, "another", found)
    said = check_margin(file, Policy(), BOTH)
    assert said.startswith(f"noise floor {found[0].margin:.1%} for restored.ttft_p90, measured ")
    assert said.endswith("; none for restored.ttft_p99: run kvoffload gate --calibrate on this runner")
    save(file, this_runner(), found[1:])
    assert "none for" not in check_margin(file, Policy(), BOTH), "the other question's floor was lost"


def test_a_margin_below_the_floor_is_refused_unless_its_floor_in_seconds_is_above(
    make_blocks: MakeBlocks, tmp_path: Path
) -> None:
    file = tmp_path / CALIBRATION_FILE
    found = floors(make_blocks, 1.0, 1.2, 0.9, 1.1)
    save(file, this_runner(), found)
    floor = found[0].margin
    assert floor > 0.10
    with pytest.raises(UsageError) as refused:
        check_margin(file, Policy(), P90)
    assert f"ttft_p90 regression < 10% is below this runner's noise floor of {floor:.1%}" in str(refused.value)
    assert "A against A differs by as much" in str(refused.value)
    wide = parse_thresholds(["ttft_p90 regression < 10% or 200ms"])  # of some 60 ms
    assert check_margin(file, Policy(), wide).startswith("noise floor")


def test_fewer_boots_have_a_higher_floor(make_blocks: MakeBlocks, tmp_path: Path) -> None:
    (one, _) = floors(make_blocks, 1.0, 1.05, 0.97, 1.02)
    assert one.margin_at(2) == pytest.approx(one.margin)
    assert one.margin_at(1) > one.margin > one.margin_at(8)
    file = tmp_path / CALIBRATION_FILE
    save(file, this_runner(), [dataclasses.replace(one, margin=0.08)])
    assert "noise floor 8.0%" in check_margin(file, Policy(), P90)
    with pytest.raises(UsageError, match=r"noise floor of 11\.5%"):
        check_margin(file, Policy(), P90, boots=1)


def test_a_tier_that_never_served_and_failed_requests_calibrate_nothing(
    make_blocks: MakeBlocks, tmp_path: Path
) -> None:
    runs = runs_of(make_blocks, 1.0, 1.0, 1.0)
    phase = runs[1][0].measurement.phases[-1]
    broken = dataclasses.replace(phase.samples[0], error="HTTP 500", first_token_at_seconds=None)
    phases = (*runs[1][0].measurement.phases[:-1], dataclasses.replace(phase, samples=(broken, *phase.samples[1:])))
    runs[1][0] = dataclasses.replace(runs[1][0], measurement=dataclasses.replace(runs[1][0].measurement, phases=phases))
    with pytest.raises(IncomparableError, match=r"restored.ttft_p90 cannot be calibrated: .*1 failed requests"):
        calibrate(runs, asked=P90, confidence=0.95, boots_per_arm=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "not a calibration file of schema 2"),
        ('{"schema_version": 1, "runners": {}}', r"\(it says 1\): remove it and run kvoffload gate --calibrate again"),
        ("{", "not a calibration file"),
    ],
)
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / CALIBRATION_FILE
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        check_margin(file, Policy(), P90)


CONFIG = """
[engine]
kind = "attach"
url = "{url}"
[connectors.native]
kind = "native"
size_gib = 1
[workload]
prefix_tokens = 64
suffix_tokens = 8
output_tokens = 1
sessions = 40
[gate]
requests = 40
thresholds = ["ttft_p90 regression < 10%"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_calibrates_what_the_thresholds_ask(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=100_000, seconds_per_load=0.002)) as server:
        (folder / "kvoffload.toml").write_text(CONFIG.format(url=server.url))
        code = main(["gate", "--calibrate", "--boots", "3", "--no-progress"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "restored: p90 of 3 runs of the same configuration scatters by" in out
    assert "the server was never booted again" in out
    (floor,) = json.loads((folder / CALIBRATION_FILE).read_text())["runners"][this_runner()].values()
    assert (floor["label"], floor["runs"], floor["boots_per_arm"]) == ("restored.ttft_p90", 3, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--boots", "2"], "at least 3 boots"),
        (["--threshold", "hit_rate >= 0.5"], "no threshold asks for a regression"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_a_boot(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    (folder / "kvoffload.toml").write_text(CONFIG.format(url="http://127.0.0.1:1"))
    assert main(["gate", "--calibrate", "--no-progress", *words]) == 2
    assert said in capsys.readouterr().err
