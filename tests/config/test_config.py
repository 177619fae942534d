"""The configuration file: what it accepts, and the text of each refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.config import build_config, find_config, load_config, override
from pytest_kvoffload.errors import ConfigError
from pytest_kvoffload.records import WorkloadConfig


def test_defaults_are_a_control_and_a_native_tier() -> None:
    config = load_config(None)
    assert {name: c.kind for name, c in config.connectors.items()} == {"control": "recompute", "native": "native"}
    assert config.engine.kind == "cpu"
    assert config.source is None


def test_a_full_file_becomes_records(tmp_path: Path) -> None:
    path = tmp_path / "kvoffload.toml"
    path.write_text(
        """
        [model]
        path = "Qwen/Qwen3-8B"
        [engine]
        kind = "local"
        python = "/opt/venv/bin/python"
        args = ["--max-num-seqs", "8"]
        env = { CUDA_VISIBLE_DEVICES = "0" }
        boot_timeout_seconds = 900
        [connectors.native]
        kind = "native"
        size_gib = 40
        [workload]
        sessions = 24
        rate_per_second = 2
        [gate]
        thresholds = ["restored.hit_rate >= 0.6"]
        margin = 0.1
        """
    )
    config = load_config(path)
    assert config.engine.args == ("--max-num-seqs", "8")
    assert config.engine.boot_timeout_seconds == 900.0
    assert config.connectors["native"].options == {"size_gib": 40}
    assert config.workload.rate_per_second == 2.0
    assert config.thresholds == ("restored.hit_rate >= 0.6",)
    assert config.gate == {"margin": 0.1}
    assert config.source == str(path)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"engin": {}},
            "k.toml: [engin]; expected one of the sections model, engine, connectors, workload, gate, lint"
            " (did you mean 'engine'?)",
        ),
        ({"engine": {"knd": "cpu"}}, "[engine] knd: got an unknown key; expected one of args,"),
        ({"engine": {"knd": "cpu"}}, "(did you mean 'kind'?)"),
        ({"engine": {"kind": "gpu"}}, "[engine] kind: got 'gpu'; expected one of cpu, local, attach"),
        ({"engine": {"args": ["a", 3]}}, "[engine] args: got ['a', 3]; expected str at [1]"),
        ({"engine": {"kind": "attach"}}, "[engine] url: got nothing; expected the URL of the server to attach to"),
        ({"engine": {"url": "http://x"}}, "expected no URL: the engine kind is 'cpu'"),
        ({"engine": {"engine_urls": ["http://x"]}}, "engine_urls: got ['http://x']; expected none: the engine kind is"),
        (
            {"engine": {"kind": "attach", "url": "http://x", "kv_event_endpoints": ["tcp://x:1"]}},
            "[engine] kv_events: got false; expected true: kv_event_endpoints are named, and nobody would listen",
        ),
        ({"engine": {"boot_timeout_seconds": 0}}, "[engine] boot_timeout_seconds: got 0.0; expected a number of"),
        ({"engine": 3}, "[engine]: got 3; expected a table"),
        ({"connectors": {"a": {"knd": "x"}}}, "[connectors.a] kind: got nothing; expected the kind of connector"),
        ({"connectors": {"a": {"knd": "x"}}}, "(did you mean 'kind'?)"),
        ({"connectors": {"a": 1}}, "[connectors.a]: got 1; expected a table"),
        ({"connectors": {}}, "[connectors]: got an empty table; expected at least one connector"),
        ({"workload": {"sessions": 0}}, "[workload] sessions: got 0; expected a whole number of at least 1"),
        ({"workload": {"sessions": "x"}}, "[workload] sessions: got 'x'; expected int"),
        ({"workload": {"overflow": 0}}, "[workload] overflow: got 0.0; expected working set over device cache"),
        ({"workload": {"rate_per_second": -1}}, "expected requests per second above 0"),
        ({"gate": {"thresholds": "a"}}, "[gate] thresholds: got 'a'; expected a list of expressions"),
    ],
)
def test_each_mistake_is_named(data: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(data, source="k.toml")
    assert text in str(caught.value)


def test_a_missing_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; expected a readable file"):
        load_config(tmp_path / "kvoffload.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[engine\n")
    with pytest.raises(ConfigError, match="expected valid TOML"):
        load_config(broken)


def test_the_nearest_file_upwards_wins_and_kvoffload_toml_beats_pyproject(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert find_config(deep) is None
    project = tmp_path / "pyproject.toml"
    project.write_text("[tool.kvoffload.workload]\nseed = 7\n")
    assert find_config(deep) == project
    assert load_config(project).workload.seed == 7
    own = tmp_path / "a" / "kvoffload.toml"
    own.write_text("")
    assert find_config(deep) == own
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert find_config(deep) == own


def test_override_replaces_only_what_is_given() -> None:
    changed = override(WorkloadConfig(seed=3), {"sessions": 4}, section="mark")
    assert (changed.seed, changed.sessions) == (3, 4)
