"""The metric data and ``kvoffload meters`` against real vLLM: offload off, host tier, disk tier.

Runs on the managed engine. ``KVOFFLOAD_TEST_PYTHONS`` (paths joined by ``:``) names interpreters with other versions of
vLLM to run on instead.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from catalog_check import differences

from pytest_kvoffload.catalog import regenerate_metrics
from pytest_kvoffload.cli import main
from pytest_kvoffload.engine import RunningServer, boot
from pytest_kvoffload.engine.provision import ensure_engine
from pytest_kvoffload.errors import ExitCode
from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.metrics.query import total
from pytest_kvoffload.metrics.scrape import scrape
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig, Snapshot

pytestmark = pytest.mark.engine

PYTHONS = [path for path in os.environ.get("KVOFFLOAD_TEST_PYTHONS", "").split(":") if path] or ["managed"]
PROMPT_TOKENS, PROMPTS = 1500, 8
"""12,000 tokens: more than the 80 blocks of 128 that the device holds."""
ALWAYS = frozenset({"always"})
CONDITIONS = {
    "off": ALWAYS,
    "host": ALWAYS | {"offloading", "kv_consumer"},
    "fs": ALWAYS | {"offloading", "kv_consumer", "tiering"},
}


def connector(kind: str, folder: Path) -> ConnectorConfig:
    if kind == "off":
        return ConnectorConfig(name="off", kind="recompute")
    if kind == "host":
        return ConnectorConfig(name="host", kind="native", options={"size_gib": 0.25})
    tiers = [{"type": "fs", "root_dir": str(folder / "tier")}]
    return ConnectorConfig(name="fs", kind="tiering", options={"size_gib": 0.015625, "secondary_tiers": tiers})


@pytest.fixture(scope="module", params=[(python, kind) for python in PYTHONS for kind in CONDITIONS], ids=str)
def booted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, str, Snapshot]]:
    """A server, its kind, and its metrics from right after the boot."""
    python, kind = request.param
    engine = EngineConfig(kind="cpu", num_gpu_blocks=80)
    if python != "managed":
        engine = EngineConfig(kind="local", python=python, num_gpu_blocks=80)
    folder = tmp_path_factory.mktemp(kind)
    with boot(engine=engine, model=ModelConfig(), connector=connector(kind, folder), run_dir=folder) as server:
        yield server, kind, scrape(server.info.metrics_urls)


def prompts(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(4, 250) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]


def send(server: RunningServer, many: list[list[int]], max_tokens: int = 4) -> None:
    for prompt in many:
        body = {"model": server.info.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        requests.post(f"{server.info.url}/v1/completions", json=body, timeout=120).raise_for_status()


def settle_and_reset(server: RunningServer) -> None:
    """Wait until stores are done, then empty the device cache."""
    before = scrape(server.info.metrics_urls)
    while True:
        time.sleep(0.5)
        after = scrape(server.info.metrics_urls)
        if not total(delta(before, after), "vllm:kv_offload_store_bytes_total"):
            break
        before = after
    for _ in range(100):
        if requests.post(f"{server.info.url}/reset_prefix_cache", timeout=30).json().get("success", True):
            return
        time.sleep(0.1)
    raise AssertionError("the reset of the device cache was refused for 10 s")


def test_the_data_equals_the_pages_and_the_rates_are_right(booted: tuple[RunningServer, str, Snapshot]) -> None:
    server, kind, at_boot = booted
    version = server.info.vllm_version
    assert version is not None
    send(server, prompts(1))
    settle_and_reset(server)
    cold = scrape(server.info.metrics_urls)
    send(server, prompts(1))
    restored = scrape(server.info.metrics_urls)

    assert differences([at_boot, cold, restored], version=version, conditions=CONDITIONS[kind]) == []

    meters = read_meters(delta(cold, restored), vllm_version=version, prompt_tokens=PROMPTS * PROMPT_TOKENS)
    assert meters.caveats == ()
    found = hit_rate(meters, "external")
    assert isinstance(found, HitRate)
    whole_blocks = PROMPT_TOKENS // 128 * 128 / PROMPT_TOKENS
    assert found.rate == pytest.approx(0.0 if kind == "off" else whole_blocks)
    by_tier = hit_rate(meters, {"off": "host", "host": "host", "fs": "disk"}[kind])
    if isinstance(by_tier, HitRate):
        assert by_tier.rate == found.rate
    else:
        assert by_tier.since == "0.32.0"


def test_meters_under_load_and_idle(
    booted: tuple[RunningServer, str, Snapshot], capsys: pytest.CaptureFixture[str]
) -> None:
    server, kind, _ = booted
    send(server, prompts(2))
    settle_and_reset(server)
    found = measured(server, capsys, prompts(2), window="15s")
    assert found["hit_rate"]["external"]["hit_tokens"] == (
        0 if kind == "off" else PROMPTS * (PROMPT_TOKENS // 128) * 128
    )
    if kind == "off":
        assert found["verdict"]["word"] == "not exercised"
        assert "shows no KV connector" in found["verdict"]["reason"]
    else:
        # Which of these it is depends on the machine; that there was something to weigh does not.
        assert found["verdict"]["word"] in {"helping", "hurting", "unclear"}
        assert "restoring" in found["verdict"]["reason"]
    idle = measured(server, capsys, [], window="1s")
    assert (idle["code"], idle["verdict"]["word"]) == (ExitCode.INCONCLUSIVE, "not exercised")
    assert "no prompt was processed in the window" in idle["verdict"]["reason"]


def measured(
    server: RunningServer, capsys: pytest.CaptureFixture[str], load: list[list[int]], *, window: str
) -> dict[str, Any]:
    """Run ``kvoffload meters`` over a window that the load begins and ends in."""
    capsys.readouterr()
    # The window opens first: nothing of the load may fall outside.
    sender = threading.Timer(1.0, send, args=(server, load))
    sender.start()
    code = main(["meters", server.info.url, "--for", window, "--json"])
    sender.join()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {**found, "code": code}


@pytest.mark.parametrize("python", PYTHONS)
def test_the_script_reads_from_the_installed_vllm_what_the_data_says(python: str) -> None:
    path = str(ensure_engine().python) if python == "managed" else python
    text = subprocess.run([path, regenerate_metrics.__file__], capture_output=True, text=True, check=True).stdout
    installed = json.loads(text)
    (version,) = installed["versions"]["vllm"]
    data = json.loads(regenerate_metrics.DATA_FILE.read_text())["metrics"]
    assert of_version(data, version) == of_version(installed["metrics"], version)


def of_version(data: dict[str, Any], version: str) -> dict[str, Any]:
    return {
        name: {key: value for key, value in variant.items() if key != "versions"}
        for name, entry in data.items()
        for variant in entry["variants"]
        if entry["package"] == "vllm" and version in variant["versions"]
    }
