"""The engine room on real vLLM: three boots of the managed engine, each for several claims."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from pytest_kvoffload.engine import RunningServer, boot
from pytest_kvoffload.engine.guard import mapped_shared_memory
from pytest_kvoffload.engine.processes import Process
from pytest_kvoffload.errors import BootError, ServerDiedError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig

pytestmark = pytest.mark.engine

ENGINE = EngineConfig(kind="cpu")
LATENCY_SECONDS = 0.4
PROMPT = [(7 * i * i + 3 * i) % 256 for i in range(1500)]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A host tier behind a slow link."""
    options = {"size_gib": 0.25, "link_latency_seconds": LATENCY_SECONDS, "link_bandwidth_bytes_per_second": 1e9}
    connector = ConnectorConfig(name="native", kind="native", options=options)
    run_dir = tmp_path_factory.mktemp("native")
    with boot(engine=ENGINE, model=ModelConfig(), connector=connector, run_dir=run_dir) as server:
        yield server


def complete(server: RunningServer, prompt: list[int]) -> tuple[str, float]:
    """Greedy completion of 8 tokens: the text, and the seconds it took."""
    body = {
        "model": server.info.model,
        "prompt": prompt,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    began = time.monotonic()
    answer = requests.post(f"{server.info.url}/v1/completions", json=body, timeout=120)
    seconds = time.monotonic() - began
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"]), seconds


def metrics(server: RunningServer) -> dict[str, float]:
    """Every sample summed over its labels."""
    text = requests.get(server.info.metrics_urls[0], timeout=10).text
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def reset(server: RunningServer, *, external: bool = False) -> None:
    """Empty the device cache (and the host tier), once stores have settled."""
    deadline = time.monotonic() + 30
    before = -1.0
    while (now := metrics(server).get("vllm:kv_offload_store_bytes_total", 0.0)) != before or now == 0.0:
        assert time.monotonic() < deadline, "stores never settled"
        before = now
        time.sleep(0.5 + LATENCY_SECONDS)
    query = {"reset_external": "true"} if external else {}
    while not requests.post(f"{server.info.url}/reset_prefix_cache", params=query, timeout=30).json()["success"]:
        assert time.monotonic() < deadline, "the reset was refused for 30 s"
        time.sleep(0.2)


def test_the_effective_configuration_is_read_back(native: RunningServer) -> None:
    info = native.info
    assert info.vllm_version == "0.32.0"
    assert (info.block_size_tokens, info.num_gpu_blocks, info.max_model_len) == (128, 80, 8192)
    assert info.resets
    assert info.differences == ()
    assert info.kv_transfer_config is not None
    assert info.kv_transfer_config["kv_connector_extra_config"]["spec_name"] == "KVOffloadHostSpec"
    assert native.supervision is not None
    assert info.kv_transfer_config["engine_id"] == native.supervision.engine_id
    native.check()


def test_the_tier_restores_the_same_text_no_sooner_than_its_link_allows(native: RunningServer) -> None:
    cold, _ = complete(native, PROMPT)
    reset(native)
    before = metrics(native)
    restored, seconds = complete(native, PROMPT)
    after = metrics(native)
    assert restored == cold
    hits = after["vllm:external_prefix_cache_hits_total"] - before["vllm:external_prefix_cache_hits_total"]
    assert hits == 1500 // 128 * 128
    assert after["vllm:kv_offload_load_bytes_total"] > 0
    # A lower bound that the modelled link guarantees on any machine; nothing is asserted about how fast it is.
    assert seconds >= LATENCY_SECONDS
    loads = after["vllm:kv_offload_load_size_count"]
    assert after["vllm:kv_offload_load_time_total"] >= loads * LATENCY_SECONDS


def test_an_engine_core_that_is_killed_is_reported_and_cleaned_up(native: RunningServer) -> None:
    assert native.info.pid is not None
    family = [Process.of(native.info.pid)]
    children = psutil.Process(native.info.pid).children(recursive=True)
    family += [Process.of(child.pid) for child in children]
    shared = mapped_shared_memory([process.pid for process in family], since=0.0)
    assert shared, "vLLM's processes share memory; without any there is nothing to clean up here"
    core = next(child for child in children if "EngineCore" in " ".join(child.cmdline()))
    core.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while native.alive() and time.monotonic() < deadline:
        try:
            complete(native, PROMPT[:300])
        except requests.RequestException:
            time.sleep(0.2)
    with pytest.raises(ServerDiedError) as caught:
        native.check()
    assert "the server died after it was ready" in str(caught.value)
    assert "the engine's process is gone and wrote no error of its own: it was killed" in str(caught.value)
    native.stop()
    assert not any(process.alive() for process in family)
    assert not [path for path in shared if Path(path).exists()]


def test_an_extra_config_that_vllm_refuses_is_named(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 2**28, "eviction_policy": "LRU"},
    }
    connector = ConnectorConfig(name="bad", kind="raw", options={"kv_transfer_config": config})
    with pytest.raises(BootError) as caught:
        boot(engine=ENGINE, model=ModelConfig(), connector=connector, run_dir=tmp_path)
    assert "eviction_policy 'LRU' does not exist" in caught.value.cause
    assert "lru" in caught.value.cause


OWNER = """
import json, sys
from pathlib import Path
from pytest_kvoffload.engine import boot
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig
tiers = [{"type": "fs", "root_dir": sys.argv[1] + "/disk"}]
connector = ConnectorConfig(name="tiered", kind="tiering", options={"size_gib": 0.0625, "secondary_tiers": tiers})
server = boot(engine=EngineConfig(kind="cpu"), model=ModelConfig(), connector=connector, run_dir=Path(sys.argv[1]))
print(json.dumps(server.to_record()), flush=True)
sys.stdin.read()  # until whoever started this is gone
"""


def test_a_disk_tier_restores_and_nothing_survives_a_killed_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        with owner.stdout as out:
            line = out.readline()
        assert line, "the owner could not boot the server"
        server = RunningServer.adopt(json.loads(line))
        assert server.supervision is not None
        assert server.info.pid is not None
        pattern = f"vllm_offload_{server.supervision.engine_id}*"
        assert list(Path("/dev/shm").glob(pattern))
        cold, _ = complete(server, PROMPT)
        reset(server, external=True)
        before = metrics(server)
        restored, _ = complete(server, PROMPT)
        after = metrics(server)
        assert restored == cold
        hits = after["vllm:external_prefix_cache_hits_total"] - before["vllm:external_prefix_cache_hits_total"]
        assert hits == 1500 // 128 * 128
        assert list((tmp_path / "disk").rglob("*"))
        family = [Process.of(server.info.pid)]
        family += [Process.of(child.pid) for child in psutil.Process(server.info.pid).children(recursive=True)]
        shared = mapped_shared_memory([process.pid for process in family], since=0.0)
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        assert owner.stdin is not None
        owner.stdin.close()
    deadline = time.monotonic() + 10

    def left() -> list[str]:
        files = [*(path for path in shared if Path(path).exists()), *map(str, Path("/dev/shm").glob(pattern))]
        return [*files, *(f"process {process.pid}" for process in family if process.alive())]

    while left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left() == []
