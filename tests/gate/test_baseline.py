"""Baselines: recorded, kept apart by key, compared with, shown and exported."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.cli import main
from pytest_kvoffload.errors import IncomparableError, UsageError
from pytest_kvoffload.gate import baseline as rooms
from pytest_kvoffload.gate.baseline import Baseline, BaselineKey
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.output import gate_exports
from pytest_kvoffload.output.baseline_text import baseline_text
from pytest_kvoffload.records import to_json

MakeBlocks = Callable[..., list[Block]]
KEY = BaselineKey(runner="cpu / 2 / none", model="m", engine="cpu", connector="native")


@pytest.fixture
def recorded(make_blocks: MakeBlocks) -> Baseline:
    first = rooms.updated(None, KEY, make_blocks([0.05] * 120, name="baseline"), commit="aaa")
    return rooms.updated(first, KEY, make_blocks([0.06] * 120, name="baseline"), commit="bbb")


def test_a_file_comes_back_as_it_was_written(recorded: Baseline, tmp_path: Path) -> None:
    path = rooms.save(tmp_path, recorded)
    again = rooms.load(path)
    assert to_json(again) == to_json(recorded)
    assert again.newest.metrics["restored.ttft_p99"] == pytest.approx(0.06)
    assert again.anchor.metrics["restored.ttft_p99"] == pytest.approx(0.05)
    assert again.newest.metrics["restored.external.hit_rate"] > 0.5
    assert not [s for b in again.blocks for p in b.measurement.phases for s in p.delta.samples if "_bucket" in s.name]


def test_drift_is_counted_from_the_anchor_until_it_is_moved(recorded: Baseline, make_blocks: MakeBlocks) -> None:
    shown = baseline_text(recorded)
    (row,) = [line for line in shown.splitlines() if line.startswith("restored.ttft_p99")]
    assert row.split() == ["restored.ttft_p99", "50", "ms", "55", "ms", "60", "ms", "+20.0%"]
    moved = rooms.updated(recorded, KEY, make_blocks([0.07] * 120, name="baseline"), commit="ccc", anchor=True)
    assert (moved.anchor.commit, len(moved.history)) == ("ccc", 3)


def test_another_runner_is_told_apart_and_named(recorded: Baseline, tmp_path: Path) -> None:
    rooms.save(tmp_path, recorded)
    other = dataclasses.replace(KEY, runner="cpu / 64 / H100")
    with pytest.raises(IncomparableError, match="runner 'cpu / 2 / none', here 'cpu / 64 / H100'"):
        rooms.find(tmp_path, other)


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 99}', '{"schema_version": 1}', "\x00"])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"x\.json: not a baseline"):
        rooms.load(path)


def test_a_run_with_failed_requests_is_no_baseline(make_blocks: MakeBlocks) -> None:
    blocks = make_blocks([0.05] * 60, name="baseline")
    phase = blocks[1].measurement.phases[0]
    bad = dataclasses.replace(phase, samples=(dataclasses.replace(phase.samples[0], error="HTTP 500"),))
    measurement = dataclasses.replace(blocks[1].measurement, phases=(bad, *blocks[1].measurement.phases[1:]))
    with pytest.raises(IncomparableError, match="block 1 cannot be a baseline: 1 failed requests, the first: HTTP 500"):
        rooms.entry_of([blocks[0], dataclasses.replace(blocks[1], measurement=measurement)], commit=None)


def test_what_the_baseline_has_and_the_run_has_not_is_named(make_blocks: MakeBlocks) -> None:
    before = make_blocks([0.05] * 120, name="baseline")
    after = []
    for block in before[:2]:
        phases = tuple(p for p in block.measurement.phases if p.name != "resident")
        after.append(dataclasses.replace(block, measurement=dataclasses.replace(block.measurement, phases=phases)))
    gone = rooms.missing(before, after)
    assert "resident.ttft_p50" in gone
    assert all(name.startswith("resident.") for name in gone), gone  # fewer requests are no missing measurement


def test_exports(recorded: Baseline) -> None:
    metric = json.loads(gate_exports.bencher([recorded]))["native/restored.ttft_p99"]
    assert metric == {"latency": {"value": pytest.approx(60e6)}}
    rows = {row["name"]: row for row in json.loads(gate_exports.github_action_benchmark([recorded]))}
    assert rows["native/restored.ttft_p99"]["value"] == pytest.approx(60)
    assert rows["native/restored.ttft_p99"]["unit"] == "ms"
    rate = recorded.newest.metrics["restored.external.hit_rate"]
    assert rows["native/restored.external.miss_rate"]["value"] == pytest.approx(1 - rate)
    table = list(csv.DictReader(io.StringIO(gate_exports.otava_csv(recorded))))
    assert [row["commit"] for row in table] == ["aaa", "bbb"]
    assert [float(row["restored_ttft_p99"]) for row in table] == pytest.approx([0.05, 0.06])
    test = yaml.safe_load(gate_exports.otava_config(recorded, "x.csv"))["tests"]["kvoffload.native"]
    assert test["metrics"]["restored_ttft_p99"] == {"column": "restored_ttft_p99", "direction": -1}
    assert test["metrics"]["restored_hit_rate"]["direction"] == 1


def test_the_commands_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with FakeVLLM(FakeConfig(tier_blocks=100_000, seconds_per_load=0.01)) as server:
        (tmp_path / "kvoffload.toml").write_text(
            f'[engine]\nkind = "attach"\nurl = "{server.url}"\n\n[connectors.native]\nkind = "native"\nsize_gib = 1\n\n'
            "[workload]\nprefix_tokens = 64\nsuffix_tokens = 8\noutput_tokens = 1\nsessions = 30\n"
        )
        common = ["--requests", "60", "--boots", "1", "--no-progress"]
        assert main(["gate", "--reference", "baseline", "--json", "none.json", *common]) == 3
        assert (
            "no baseline for connector native"
            in json.loads(Path("none.json").read_text())["verdict"]["findings"][0]["text"]
        )
        assert main(["baseline", "update", *common]) == 0
        assert "recorded 60 requests over 1 boot in" in capsys.readouterr().out
        server.config.seconds_per_load = 0.05
        code = main(["baseline", "compare", "--json", "v.json", "--github", "--threshold", "ttft_p50 < 20ms", *common])
        out = capsys.readouterr().out
        assert code == 1, out
        assert "::error file=kvoffload.toml,line=5,title=KV offload gate::ttft_p50 < 20ms: restored.ttft_p50" in out
        verdict = json.loads(Path("v.json").read_text())["verdict"]
        assert verdict["findings"][0]["name"] == "measured as in the baseline"
        assert "it was not measured in this run" in verdict["notes"][0]
        assert main(["baseline", "show"]) == 0
        assert "restored.external.hit_rate" in capsys.readouterr().out
        assert main(["baseline", "show", "--format", "bencher"]) == 0
        assert "native/restored.ttft_p50" in json.loads(capsys.readouterr().out)


def test_other_seeds_than_the_recorded_ones_are_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--requests", "60", "--boots", "1", "--no-progress", "--threshold", "hit_rate >= 0.5"]
    with FakeVLLM(FakeConfig(tier_blocks=100_000)) as server:
        text = (
            f'[engine]\nkind = "attach"\nurl = "{server.url}"\n\n[connectors.native]\nkind = "native"\nsize_gib = 1\n\n'
            "[workload]\nprefix_tokens = 64\nsuffix_tokens = 8\noutput_tokens = 1\nsessions = 30\nseed = "
        )
        (tmp_path / "kvoffload.toml").write_text(text + "7")
        assert main(["baseline", "update", *words]) == 0
        asked = server.completions
        (tmp_path / "kvoffload.toml").write_text(text + "9")
        assert main(["baseline", "compare", *words]) == 3
        out = capsys.readouterr().out
        assert "recorded with the seeds 7, 8, and this configuration begins at 9" in out
        assert server.completions == asked
        # Seed 8 is there: its block is the first of this run, and the only one.
        (tmp_path / "kvoffload.toml").write_text(text + "8")
        assert main(["baseline", "compare", *words]) == 0
        assert "requests per arm 30" in capsys.readouterr().out
