"""Two real engines behind a real router, and what they say of their tiers: one boot of each for all of it.

With KVOFFLOAD_TEST_DATA_PARALLEL=1, or in a nightly run, also two data parallel ranks of one server (two minutes on one
core).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from fakes.router import ROUTER, router

from pytest_kvoffload import assert_blocks_stored, assert_hit_rate_above, assert_same_output
from pytest_kvoffload.assertions import MeterAssertionError
from pytest_kvoffload.engine import RunningServer, attach, boot
from pytest_kvoffload.metrics.kv_events import blocks
from pytest_kvoffload.metrics.replicas import hit_rates, place_name
from pytest_kvoffload.probe import measure
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, KVEventLog, ModelConfig, WorkloadConfig

pytestmark = pytest.mark.engine

BLOCKS = 40
ENGINE = EngineConfig(kind="cpu", num_gpu_blocks=BLOCKS, max_model_len=4096, kv_events=True)
NATIVE = ConnectorConfig(name="native", kind="native", options={"size_gib": 0.25})
WORKLOAD = WorkloadConfig(prefix_tokens=1024, suffix_tokens=16, output_tokens=2, sessions=12)
CHUNKS = 1040 // 128
"""Full blocks of one prompt; with the connector's default a chunk is a block."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunningServer]]:
    where = tmp_path_factory.mktemp("fleet")
    with (
        boot(engine=ENGINE, model=ModelConfig(), connector=NATIVE, run_dir=where / "one") as one,
        boot(engine=ENGINE, model=ModelConfig(), connector=NATIVE, run_dir=where / "two") as other,
    ):
        yield one, other


def log(measured: object) -> KVEventLog:
    assert isinstance(measured, KVEventLog)
    return measured


@pytest.mark.skipif(ROUTER is None, reason="vllm-router has no wheel for this machine")
def test_a_router_is_measured_as_one_and_by_engine(two: tuple[RunningServer, RunningServer], tmp_path: Path) -> None:
    names = [place_name(server.info.url) for server in two]
    urls = [server.info.url for server in two]
    with router(*urls, policy="consistent_hash", log=tmp_path / "router.log") as url:
        server = attach(EngineConfig(kind="attach", url=url, kv_events=True))
        assert (server.info.engine_urls, server.info.replicas, server.info.resets) == (tuple(sorted(urls)), 2, True)
        assert server.info.device_cache_tokens == 2 * BLOCKS * 128
        by_prefix = measure(server, arm="native", connector=NATIVE, workload=WORKLOAD)
    assert_hit_rate_above(by_prefix, 0.8, tier="external")
    assert_same_output(by_prefix)
    rates = hit_rates(by_prefix.phase("restored").delta, vllm_version="0.32.0", tier="external")
    assert sorted(rates) == sorted(names)
    # What the engines say they stored is what was asked of them, on whichever of them it landed.
    assert_blocks_stored(by_prefix, medium="CPU", at_least=12 * CHUNKS, phase="cold")
    cold = log(by_prefix.phase("cold").kv_events)
    assert cold.lost_batches == 0
    parts = [blocks(cold, "stored", medium="CPU", replica=name) for name in names]
    assert sum(parts) == blocks(cold, "stored", medium="CPU")
    assert blocks(cold, "stored", medium="GPU") >= 12 * CHUNKS
    # Restored blocks are the device's again; the tier had them already.
    restored = log(by_prefix.phase("restored").kv_events)
    assert blocks(restored, "stored", medium="GPU") > blocks(restored, "stored", medium="CPU")


@pytest.mark.skipif(ROUTER is None, reason="vllm-router has no wheel for this machine")
def test_a_revisit_on_the_other_engine_misses_and_the_reason_is_named(
    two: tuple[RunningServer, RunningServer], tmp_path: Path
) -> None:
    with router(*(s.info.url for s in two), policy="round_robin", log=tmp_path / "router.log") as url:
        server = attach(EngineConfig(kind="attach", url=url))
        # In turn, and an odd number of them before the revisit: each session comes back to the engine that did not
        # have it. How many the resident phase repeats depends on the caches' size.
        for sessions in (12, 13):
            workload = dataclasses.replace(WORKLOAD, sessions=sessions)
            in_turn = measure(server, arm="native", connector=NATIVE, workload=workload)
            if sum(len(in_turn.phase(name).samples) for name in ("cold", "resident")) % 2:
                break
    with pytest.raises(MeterAssertionError, match="each of the 2 replicas has a tier of its own") as caught:
        assert_hit_rate_above(in_turn, 0.6, tier="external")
    # What the resident phase repeated is on both engines by now; the rest was recomputed.
    assert all(place_name(server.info.url) in str(caught.value) for server in two)


@pytest.mark.skipif(
    not os.environ.get("KVOFFLOAD_TEST_DATA_PARALLEL") and not os.environ.get("KVOFFLOAD_NIGHTLY"),
    reason="KVOFFLOAD_TEST_DATA_PARALLEL=1, or a nightly run, boots two ranks",
)
@pytest.mark.parametrize("version", ["0.32.0", "0.27.1"])
def test_data_parallel_ranks_have_a_tier_each(tmp_path: Path, version: str) -> None:
    engine = dataclasses.replace(
        ENGINE, vllm_version=version, args=("--data-parallel-size", "2"), boot_timeout_seconds=1200.0
    )
    prompt = [(7 * i * i + 3 * i) % 250 + 3 for i in range(1024)]

    with boot(engine=engine, model=ModelConfig(), connector=NATIVE, run_dir=tmp_path) as server:

        def cached(rank: int) -> int:
            requests.post(f"{server.info.url}/reset_prefix_cache", timeout=60)
            answer = requests.post(
                f"{server.info.url}/v1/completions",
                json={"model": server.info.model, "prompt": prompt, "max_tokens": 2, "temperature": 0},
                headers={"X-data-parallel-rank": str(rank)},
                timeout=120,
            )
            answer.raise_for_status()
            return int((answer.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

        assert server.info.replicas == 2
        assert server.info.environment["VLLM_CPU_OMP_THREADS_BIND"].count("|") == 1
        measured = measure(server, arm="native", connector=NATIVE, workload=WORKLOAD)
        seen = [cached(0), cached(1), cached(0), cached(1)]
    assert seen[0] == seen[1] == 0, "a rank restored what only the other one had stored"
    assert seen[2] == seen[3] >= 896
    rates = hit_rates(measured.phase("restored").delta, vllm_version=version, tier="external")
    assert sorted(rates) == ["0", "1"]
    cold = log(measured.phase("cold").kv_events)
    assert all(blocks(cold, "stored", medium="CPU", replica=rank) > 0 for rank in "01")
    assert blocks(cold, "stored", medium="CPU") >= 12 * CHUNKS
