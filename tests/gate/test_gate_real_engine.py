"""The gate on real vLLM: a tier that was turned off in silence is blocked by name, and a slower link as slower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_kvoffload.cli import main

pytestmark = pytest.mark.engine

CONFIG = """
[engine]
kind = "cpu"
num_gpu_blocks = 80

[connectors.native]
kind = "native"
size_gib = 1

[connectors.too_small]
kind = "native"
cpu_bytes_to_use = 8

[lint]
ignore = ["KVO701"]

[workload]
prefix_tokens = 1024
output_tokens = 2

[gate]
requests = 40
boots = 1
thresholds = ["external.hit_rate >= 0.6"]
"""


def reported(run: Path) -> str:
    """Return the HTML report of a run."""
    target = run / "report.html"
    assert main(["report", str(run), "--output", str(target)]) == 0
    return target.read_text(encoding="utf-8")


def test_a_tier_that_is_silently_off_fails_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It boots, is healthy and answers every request, but its size was meant in GiB: nothing is ever stored."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvoffload.toml").write_text(CONFIG)
    code = main(["gate", "--candidate", "too_small", "--reference", "native", "--output", "out", "--no-progress"])
    out = capsys.readouterr().out
    assert code == 1, out
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["outcome"] == "fail"
    (finding,) = verdict["verdict"]["findings"]
    assert finding["name"] == "tier exercised"
    assert "the tier of candidate was never reached: 0 of" in finding["text"]
    page = reported(tmp_path / "out")
    for words in (
        "the tier of candidate was never reached: 0 of",
        "connector cpu_bytes_to_use: (not set) → 8",
        "candidate restored: 0 B stored, 0 B loaded",
        '<td class="short">preflight</td>',
        "kvoffload ",
    ):
        assert words in page


LINK = """
[engine]
kind = "cpu"
num_gpu_blocks = 40
max_model_len = 4096

[connectors.native]
kind = "native"
size_gib = 1
link_bandwidth_bytes_per_second = {bandwidth}

[workload]
prefix_tokens = 256
output_tokens = 2

[gate]
requests = 168
boots = 1
thresholds = ["ttft_p90 regression < 10%"]
"""


def test_a_link_at_a_third_of_the_bandwidth_is_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.toml").write_text(LINK.format(bandwidth=12_000_000))
    (tmp_path / "new.toml").write_text(LINK.format(bandwidth=4_000_000))
    words = ["--config", "new.toml", "--reference", "old.toml", "--output", "out", "--no-progress", "--github"]
    code = main(["gate", *words])
    out = capsys.readouterr().out
    assert code == 1, out
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())["verdict"]
    tail = verdict["findings"][-1]["tail"]
    assert tail["decision"] == "worse"
    assert tail["ratio_low"] > 1.1
    assert 'id="plot-ratios"' in reported(tmp_path / "out")
    assert "::error file=new.toml,line=10,title=KV offload gate::ttft_p90 regression < 10%25: p90 " in out
