"""``kvoffload init --from values.yaml``: production-stack's values in, the launch of its chart out.

The expectation is written down from what the chart's own unit tests expect of its rendered deployment, and from its
template: helm itself is not needed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_kvoffload.cli import main
from pytest_kvoffload.config import load_config
from pytest_kvoffload.engine import validate_connector
from pytest_kvoffload.engine.connectors import connector_argv
from pytest_kvoffload.records import KVOffloadConfig

VALUES = """\
servingEngineSpec:
  modelSpec:
  - name: small
    repository: lmcache/vllm-openai
    tag: v0.3.9post2
    modelURL: org/model
    replicaCount: 2
    requestMemory: 30Gi
    requestGPU: 1
    pvcStorage: 50Gi
    hf_token: hf_planted
    env:
    - {name: LMCACHE_CHUNK_SIZE, value: "512"}
    vllmConfig:
      enablePrefixCaching: true
      maxModelLen: 1024
      gpuMemoryUtilization: 0.8
      extraArgs: ["--seed", "7"]
    lmcacheConfig:
      enabled: true
      cpuOffloadingBufferSize: "10"
      diskOffloadingBufferSize: "20"
      enableController: true
      controllerPort: 9000
      workerPorts: "8001"
      p2pHost: localhost
      p2pInitPorts: "30081"
      logLevel: DEBUG
"""
# What the chart renders of these values, without what names the pod or the cluster.
ARGV = {
    "--enable-prefix-caching": None,
    "--max-model-len": "1024",
    "--gpu-memory-utilization": "0.8",
    "--seed": "7",
}
TRANSFER = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
ENVIRONMENT = {
    "PYTHONHASHSEED": "123",
    "LMCACHE_CHUNK_SIZE": "512",
    "LMCACHE_USE_EXPERIMENTAL": "True",
    "VLLM_RPC_TIMEOUT": "1000000",
    "LMCACHE_LOG_LEVEL": "DEBUG",
    "LMCACHE_LOCAL_CPU": "True",
    "LMCACHE_MAX_LOCAL_CPU_SIZE": "10",
    "LMCACHE_MAX_LOCAL_DISK_SIZE": "20",
    "LMCACHE_ENABLE_CONTROLLER": "True",
    "LMCACHE_LMCACHE_WORKER_PORTS": "8001",
    "LMCACHE_P2P_HOST": "localhost",
    "LMCACHE_P2P_INIT_PORTS": "30081",
}
SECOND = """\
  - name: other
    repository: vllm/vllm-openai
    tag: v0.32.0
    modelURL: org/other
    vllmConfig: {maxModelLen: 4096, extraArgs: ["--kv-offloading-size", "32"]}
  - name: off
    enabled: false
    repository: vllm/vllm-openai
    tag: v0.32.0
    modelURL: org/off
"""


def init(tmp_path: Path, text: str, *words: str) -> KVOffloadConfig:
    values = tmp_path / "values.yaml"
    values.write_text(text)
    assert main(["init", "--directory", str(tmp_path / "n"), "--yes", "--from", str(values), *words]) == 0
    return load_config(tmp_path / "n" / "kvoffload.toml")


def flags(words: tuple[str, ...]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for word in words:
        if word.startswith("--"):
            found[word.replace("_", "-")] = None
        else:
            found[next(reversed(found))] = word
    return found


def test_the_launch_is_the_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = init(tmp_path, VALUES)
    arm = config.connectors["deployed"]
    parts = connector_argv(arm, engine=config.engine, server_version="0.32.0", cpu_platform=False)
    words = flags((*config.engine.args, *parts.args))
    assert json.loads(words.pop("--kv-transfer-config") or "") == TRANSFER
    assert words == ARGV
    assert {**config.engine.env, **parts.env} == ENVIRONMENT
    assert config.model.path == "org/model"
    out = capsys.readouterr().out
    assert "not carried over: HF_HOME, POD_IP: places of the pod" in out
    assert "not carried over: PROMETHEUS_MULTIPROC_DIR: a directory of the pod" in out
    assert "replicaCount 2: one replica is booted; each has its own tier, so attach to the router" in out
    assert "hf_planted" not in out + (tmp_path / "n" / "kvoffload.toml").read_text()


def test_the_cpu_engine_gets_what_it_can_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = init(tmp_path, VALUES, "--engine", "cpu")
    arm = config.connectors["deployed"]
    validate_connector(arm, engine=config.engine)
    assert (config.model.path, config.engine.args) == (None, ("--enable-prefix-caching", "--seed", "7"))
    assert arm.kind == "lmcache_inprocess"
    assert arm.options == {"max_local_cpu_size": 1.0, "chunk_size": 512, "hash_seed": 123}
    assert "LMCACHE_ENABLE_CONTROLLER" not in arm.env
    out = capsys.readouterr().out
    for sentence in (
        "the model org/model: the generated test model stands for it",
        "--max-model-len 1024: the test model has 8192 tokens",
        "--gpu-memory-utilization 0.8: the device cache is [engine] num_gpu_blocks",
        "the tier of 10 GiB: 1 GiB here, the test model's KV is small",
        "LMCACHE_ENABLE_CONTROLLER: it needs other pods",
    ):
        assert f"for the cpu engine: {sentence}" in out


def test_a_model_of_ones_own_keeps_its_arguments(tmp_path: Path) -> None:
    config = init(tmp_path, VALUES, "--engine", "cpu", "--model", "/models/mine")
    assert config.model.path == "/models/mine"
    assert "--max-model-len" in config.engine.args
    assert "--gpu-memory-utilization" not in config.engine.args


def test_without_the_key_the_chart_switches_prefix_caching_off(tmp_path: Path) -> None:
    config = init(tmp_path, VALUES.replace("      enablePrefixCaching: true\n", ""))
    assert "--no-enable-prefix-caching" in config.engine.args


def test_one_of_several_model_specs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = init(tmp_path, VALUES + SECOND, "--spec", "other", "--engine", "cpu")
    assert config.connectors["deployed"].kind == "native"
    assert config.connectors["deployed"].options == {"size_gib": 1.0}
    assert "the tier of 32 GiB: 1 GiB here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (VALUES + SECOND, [], "found 2 model specs (small, other); name one with --spec"),
        (VALUES + SECOND, ["--spec", "othr"], "no model spec 'othr' (did you mean 'other'?); there are small, other"),
        (VALUES + SECOND, ["--spec", "off"], "no model spec 'off'"),
        ("kind: nothing\n", ["--spec", "x"], "has no model specs of production-stack's chart"),
    ],
)
def test_what_is_not_clear_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str], message: str
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(text)
    assert main(["init", "--directory", str(tmp_path / "n"), "--yes", "--from", str(values), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "n").exists()
    assert main(["init", "--directory", str(tmp_path / "n"), "--yes", "--spec", "x"]) == 2
