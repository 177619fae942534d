"""LMCache on real vLLM: a server that outlives vLLM, its disk, the in-process copy, the mode that gives up in silence.

Four boots. What the other combinations do is for the tier matrix to show.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from pytest_kvoffload import assert_hit_rate_above, assert_same_output
from pytest_kvoffload.engine import RunningServer
from pytest_kvoffload.engine.connectors import inside_dir
from pytest_kvoffload.engine.provision import ensure_engine
from pytest_kvoffload.errors import TierDegradedError
from pytest_kvoffload.metrics.query import total
from pytest_kvoffload.metrics.scrape import scrape
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, Measurement, ModelConfig, WorkloadConfig
from pytest_kvoffload.session import Arm, RunSession

pytestmark = pytest.mark.engine

# One engine for all connectors that need something beside vLLM: the others use it too.
EXTRAS = ("lmcache", "nixl")
ENGINE = EngineConfig(kind="cpu", num_gpu_blocks=24, max_model_len=2048)
WORKLOAD = WorkloadConfig(prefix_tokens=1024, suffix_tokens=16, output_tokens=4)
PROMPT = [(11 * i * i + 5 * i) % 256 for i in range(1200)]
HITS = "vllm:external_prefix_cache_hits_total"
L2_HITS = "lmcache_mp_lookup_hit_l2_tokens_total"


@pytest.fixture(scope="module", autouse=True)
def engine() -> str:
    return str(ensure_engine(extras=EXTRAS).python)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[RunSession]:
    made = RunSession(tmp_path)
    yield made
    made.close()


def arm(kind: str, **options: object) -> Arm:
    return Arm(engine=ENGINE, model=ModelConfig(), connector=ConnectorConfig(name=kind, kind=kind, options=options))


def hits(measurement: Measurement, phase: str) -> float:
    return total(measurement.phase(phase).delta, HITS) or 0.0


def now(server: RunningServer, name: str) -> float:
    return sum(sample.value for sample in scrape(server.info.metrics_urls).samples if sample.name == name)


def complete(server: RunningServer, salt: str | None = None) -> str:
    body = {"model": server.info.model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    answer = requests.post(
        f"{server.info.url}/v1/completions", json=body | ({"cache_salt": salt} if salt else {}), timeout=120
    )
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


def forget(server: RunningServer) -> None:
    """Empty the device's cache, once nothing holds its blocks."""
    deadline = time.monotonic() + 30
    while not requests.post(f"{server.info.url}/reset_prefix_cache", timeout=30).json()["success"]:
        assert time.monotonic() < deadline, "the reset was refused for 30 s"
        time.sleep(0.2)


def test_a_managed_server_outlives_vllm_keeps_salts_apart_and_serves_from_its_disk(session: RunSession) -> None:
    tested = arm("lmcache_mp", l1_size_gb=0.1, l2=[{"type": "fs"}])
    shared = set(Path("/dev/shm").glob("lmcache_*"))
    with session.exclusive():
        measured = session.measure(tested, WorkloadConfig(mode="restart", prefix_tokens=1024, output_tokens=4))
        assert hits(measured, "cold") == 0
        assert_hit_rate_above(measured, 0.9, tier="external", phase="restored")
        assert_hit_rate_above(measured, 0.9, tier="lmcache_l1", phase="restored")
        assert_same_output(measured)
        server = session.server(tested)
        (helper,) = server.helpers
        assert helper.alive()
        first = complete(server, salt="one")
        forget(server)
        before = now(server, HITS)
        complete(server, salt="two")
        assert now(server, HITS) == before, "another salt must not hit: LMCache's keys hold it"
        forget(server)
        # What is in memory goes; what the disk has, stays.
        (clear,) = server.info.clears
        requests.post(clear.target, timeout=30).raise_for_status()
        assert complete(server, salt="one") == first
        assert now(server, HITS) == before + 1024
        assert now(server, L2_HITS) == 1024
        disk = Path(server.state, "lmcache-l2-0")
        assert any(path.is_file() for path in disk.rglob("*"))
        session.stop_servers()
        assert not helper.alive()
        assert not disk.exists()
    assert set(Path("/dev/shm").glob("lmcache_*")) <= shared


def test_in_process_restores_and_is_cleared_between_measurements(session: RunSession) -> None:
    tested = arm("lmcache_inprocess", max_local_cpu_size=0.1)
    with session.exclusive():
        measured = session.measure(tested, WORKLOAD)
        assert_hit_rate_above(measured, 0.9, tier="external", phase="restored")
        assert_same_output(measured)
        # The same prefixes again: what the first measurement left must not count as this one's.
        again = session.measure(tested, WorkloadConfig(prefix_tokens=1024, suffix_tokens=17, output_tokens=4))
        assert hits(again, "cold") == 0
        assert hits(again, "restored") > 0
        assert any("cleared by DELETE http://127.0.0.1:" in note for note in again.notes)
        assert any("run up to 10 s behind" in note for phase in again.phases for note in phase.notes)
        server = session.server(tested)
        complete(server, salt="one")
        forget(server)
        before = now(server, HITS)
        complete(server, salt="two")
        assert now(server, HITS) == before + 1024, "its keys hold no salt: a fresh one is no protection"


def test_lmcache_as_shipped_fails_by_name_right_after_its_boot(session: RunSession) -> None:
    config = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    with session.exclusive(), pytest.raises(TierDegradedError) as caught:
        session.measure(arm("raw", kv_transfer_config=config), WORKLOAD)
    text = str(caught.value)
    assert "LMCache's in-process mode has no connector for this platform" in text
    assert "No supported cpu connector found" in text
    assert "what to do: use kind lmcache_inprocess" in text
    assert not list(session.run_dir.glob("measurements/*")), "it is refused before anything is measured"


COPY = """
import json, sys, types, torch
sys.modules["lmcache"] = None  # the copy alone, without the seconds that LMCache and vLLM take to import
import kvoffload_lmcache_connector as ours

layers, heads, size, block, blocks, chunk = 2, 3, 4, 8, 6, 10
copy = ours.CPUPagedConnector((layers, 2, chunk, heads, size))
torch.manual_seed(0)
cache = [torch.randn(blocks, heads, block, 2 * size) for _ in range(layers)]
slots = torch.randperm(blocks * block)[:20]
made = []
for start, end in ((0, 10), (10, 20)):
    memory = types.SimpleNamespace(tensor=torch.full(copy.get_shape(end - start), float("nan")))
    copy.from_gpu(memory, start, end, kvcaches=dict(enumerate(cache)), slot_mapping=slots)
    made.append(memory)
for layer in range(layers):
    for token in range(10):
        at = slots[token]
        held = cache[layer][at // block, :, at % block, :]
        assert torch.equal(made[0].tensor[0, layer, token], held[:, :size].reshape(-1)), "keys, head by head"
        assert torch.equal(made[0].tensor[1, layer, token], held[:, size:].reshape(-1)), "values, head by head"
target = ours.CPUPagedConnector((layers, 2, chunk, heads, size))
other = [torch.zeros_like(layer) for layer in cache]
places = torch.randperm(blocks * block)[:20]
places[13] = -1
target.batched_to_gpu(made, [0, 10], [10, 20], kvcaches=other, slot_mapping=places, vllm_cached_tokens=4)
written = 0
for layer in range(layers):
    flat = other[layer].permute(0, 2, 1, 3).reshape(blocks * block, -1)
    source = cache[layer].permute(0, 2, 1, 3).reshape(blocks * block, -1)
    for token in range(20):
        if token >= 4 and token != 13:
            assert torch.equal(flat[places[token]], source[slots[token]])
            written += 1
    assert int((flat != 0).any(dim=1).sum()) == 15, "masked slots and what vLLM holds are left alone"
refused = {}
def refuse(name, call):
    try:
        call()
    except ValueError as error:
        refused[name] = str(error)
refuse("mla", lambda: ours.CPUPagedConnector((2, 1, 8, 1, 4), use_mla=True))
refuse("layerwise", lambda: ours.CPUPagedConnector((2, 2, 8, 1, 4), use_layerwise=True))
refuse("shape", lambda: ours.CPUPagedConnector((2, 1, 8, 1, 4)))
refuse("layers", lambda: copy.checked(cache[:1]))
refuse("layout", lambda: copy.checked([torch.zeros(2, blocks, block, heads, size)] * layers))
refuse("memory", lambda: copy.from_gpu(types.SimpleNamespace(tensor=torch.zeros(1)), 0, 10, slot_mapping=slots))
refuse("slots", lambda: copy.from_gpu(made[0], 15, 25, slot_mapping=slots))
print(json.dumps({"written": written, "refused": refused}))
"""


def test_the_copy_moves_every_token_and_refuses_what_it_does_not_know(engine: str) -> None:
    done = subprocess.run(
        [engine, "-c", COPY], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(inside_dir())}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["written"] == 30
    refused = answer["refused"]
    assert "latent attention (MLA) are not supported" in refused["mla"]
    assert "use_layerwise is not supported" in refused["layerwise"]
    assert "KV shape (2, 1, 8, 1, 4)" in refused["shape"]
    assert "1 KV cache tensors, LMCache expects 2 layers" in refused["layers"]
    assert "this vLLM keeps another layout on its CPU backend" in refused["layout"]
    assert "expected (2, 2, 10, 12)" in refused["memory"]
    assert "the slot mapping ends at token 20, the chunk at 25" in refused["slots"]
