"""From configuration and command line to a plan; what makes no comparison is refused."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from pytest_kvoffload.commands import gate
from pytest_kvoffload.commands.gate_plan import make_plan
from pytest_kvoffload.config import load_config
from pytest_kvoffload.errors import ConfigError, UsageError
from pytest_kvoffload.gate_run import GatePlan

CONNECTORS = """
[connectors.control]
kind = "recompute"
[connectors.native]
kind = "native"
size_gib = 1
[connectors.large]
kind = "native"
size_gib = 2
"""


def plan(tmp_path: Path, text: str, *words: str) -> GatePlan:
    path = tmp_path / "kvoffload.toml"
    path.write_text(CONNECTORS + text)
    parser = argparse.ArgumentParser()
    gate.build_parser(parser)
    return make_plan(parser.parse_args(["--candidate", "native", *words]), load_config(path), path)[0]


def test_a_gain_brings_its_arm_along(tmp_path: Path) -> None:
    text = '[gate]\nthresholds = ["ttft_p50 gain over control >= 30%", "ttft_p99 regression < 10%"]\n'
    made = plan(tmp_path, text, "--reference", "large")
    assert {name: arm.connector.kind for name, arm in made.others.items()} == {"control": "recompute"}
    assert [t.kind for t in made.thresholds] == ["gain", "regression"]
    assert (made.reference.connector.name, made.candidate.connector.name) == ("large", "native")


def test_the_command_line_wins(tmp_path: Path) -> None:
    text = '[gate]\nrequests = 900\nphase = "cold"\nthresholds = ["ttft_p99 regression < 10%"]\n'
    made = plan(tmp_path, text, "--reference", "large", "--threshold", "hit_rate >= 0.5", "--requests", "30")
    assert [t.text for t in made.thresholds] == ["hit_rate >= 0.5"]
    assert (made.requests, made.policy.phase) == (30, "cold")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", [], "compare with what?"),
        ("", ["--reference", "larg"], r"no connector 'larg' .*did you mean 'large'"),
        ('[gate]\nthresholds = ["hit_rate >= 0.5"]\n', ["--reference", "large", "--margin", "5%"], "--threshold"),
        ("[gate]\nreqests = 5\n", ["--reference", "large"], "did you mean 'requests'"),
        ('[engine]\nkind = "local"\n', ["--reference", "vllm==0.27.1"], "needs the managed engine"),
        (
            '[engine]\nkind = "attach"\nurl = "http://127.0.0.1:1"\n',
            ["--reference", "control"],
            "are both the running server http://127.0.0.1:1",
        ),
    ],
)
def test_what_makes_no_comparison_is_refused(tmp_path: Path, text: str, words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(tmp_path, text, *words)


def test_a_gain_over_an_arm_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'control'"):
        plan(tmp_path, "", "--reference", "large", "--threshold", "ttft_p50 gain over contrl >= 30%")


def test_an_attached_server_has_one_boot(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[engine]\nkind = "attach"\nurl = "http://127.0.0.1:2"\n' + CONNECTORS)
    text = '[engine]\nkind = "attach"\nurl = "http://127.0.0.1:1"\n'
    made = plan(tmp_path, text, "--reference", str(other), "--boots", "3")
    assert made.boots == 1
    assert made.reference.engine.url == "http://127.0.0.1:2"
