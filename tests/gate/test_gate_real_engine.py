"""The gate on real vLLM: a tier that was turned off in silence is blocked by name."""

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
