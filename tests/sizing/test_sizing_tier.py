"""The tier: the worked example, the units of each backend, chunks, and what the host needs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kvoffload.errors import SizingError, UsageError
from pytest_kvoffload.sizing import (
    Device,
    ModelKV,
    Serving,
    Workload,
    chunk_bytes,
    chunks,
    device_from_blocks,
    device_from_gpu,
    explicit_kv,
    model_kv,
    simple_cpu_blocks,
    size,
)

GIB = 2**30
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
}


def llama(**serving: Any) -> ModelKV:
    """Return 32 layers of 8 KV heads of 128, fp16: 131,072 bytes per token at tp 1."""
    return explicit_kv(layers=32, kv_heads=8, head_dim=128, dtype="float16", serving=Serving(**serving))


def given_device(gib: float) -> Device:
    return Device(kv_bytes_per_rank=int(gib * GIB), how="as given")


def test_the_worked_example() -> None:
    kv = llama()
    assert kv.kv_bytes_per_token == 131_072
    assert kv.bytes_for_one_request(8192) == GIB
    result = size(kv, Workload(context=8192, sessions=200), given_device(28))
    assert result.warm_bytes == 200 * GIB
    assert result.tier_bytes / GIB == pytest.approx((200 - 28) * 1.15)
    assert result.recommended_bytes == 198 * GIB
    values = {setting.key: setting.value for setting in result.settings}
    assert values == {
        "kv_offloading_size": "198",
        "cpu_bytes_to_use": str(198 * GIB),
        "cpu_bytes_to_use_per_rank": str(198 * GIB),
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "198",
        "l1_size_gb": "198",
        "cpuOffloadingBufferSize": "198",
        "hicache_size": "213",
    }


def test_no_tier_is_needed_when_the_device_holds_all() -> None:
    result = size(llama(), Workload(context=8192, sessions=28), given_device(28))
    assert not result.needed
    assert result.tier_bytes == 0
    assert result.settings == ()
    assert "no tier needed" in result.steps[-1]


def test_tensor_parallel_splits_heads_and_the_per_rank_units() -> None:
    result = size(llama(tp=4), Workload(context=8192, sessions=200), given_device(7))
    assert result.session_bytes_per_rank == GIB // 4
    assert result.recommended_bytes == 198 * GIB
    values = {setting.key: setting.value for setting in result.settings}
    assert values["kv_offloading_size"] == "198"
    assert values["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "50"
    assert values["cpuOffloadingBufferSize"] == "50"
    assert values["l1_size_gb"] == "198"
    assert values["hicache_size"] == "54"
    assert int(values["cpu_bytes_to_use_per_rank"]) == 198 * GIB // 4


def test_replicated_heads_make_the_sum_grow() -> None:
    four = size(llama(tp=8), Workload(context=8192, sessions=10), given_device(0))
    more = size(llama(tp=16), Workload(context=8192, sessions=10), given_device(0))
    assert more.warm_bytes == 2 * four.warm_bytes


def test_latents_are_kept_once_for_all_ranks() -> None:
    one = size(model_kv(DEEPSEEK), Workload(context=8192, sessions=100), given_device(1))
    eight = size(model_kv(DEEPSEEK, tp=8), Workload(context=8192, sessions=100), given_device(1))
    assert eight.copies == 1
    assert eight.tier_bytes == one.tier_bytes
    old = size(
        model_kv(DEEPSEEK, serving=Serving(tp=8, vllm_version="0.26.0")),
        Workload(context=8192, sessions=100),
        given_device(1),
    )
    assert old.copies == 8


def test_replicas_share_the_sessions() -> None:
    result = size(llama(), Workload(context=8192, sessions=201, dp=2), given_device(28))
    assert result.sessions_per_replica == 101
    assert result.warm_bytes == 101 * GIB


def test_chunks_round_a_session_up() -> None:
    result = size(llama(), Workload(context=8193, sessions=1, chunk_tokens=256), given_device(0))
    assert result.chunk_tokens == 256
    assert result.session_bytes_per_rank == 33 * 256 * 131_072
    odd = size(llama(), Workload(context=8192, sessions=1, chunk_tokens=100), given_device(0))
    assert odd.chunk_tokens == 112
    assert "rounded up to 112" in odd.notes[0]


def test_device_memory_from_the_card() -> None:
    device = device_from_gpu(gpu_memory=80 * 10**9, weights=40 * 10**9, overhead=10**9)
    assert device.kv_bytes_per_rank == 80 * 10**9 * 92 // 100 - 41 * 10**9
    half = device_from_gpu(gpu_memory=80 * 10**9, weights=40 * 10**9, ranks=2)
    assert half.kv_bytes_per_rank == 80 * 10**9 * 92 // 100 - 20 * 10**9
    with pytest.raises(UsageError, match="no memory is left for KV"):
        device_from_gpu(gpu_memory=40 * 10**9, weights=40 * 10**9)
    with pytest.raises(UsageError, match="utilisation"):
        device_from_gpu(gpu_memory=40 * 10**9, weights=1, utilisation=Fraction(3, 2))


def test_device_memory_from_the_servers_blocks() -> None:
    assert device_from_blocks(llama(), 1000).kv_bytes_per_rank == 1000 * 16 * 131_072
    with pytest.raises(UsageError, match="num_gpu_blocks: got 0"):
        device_from_blocks(llama(), 0)


def test_the_host_needs() -> None:
    new = size(llama(), Workload(context=8192, sessions=200), given_device(28)).host
    assert new is not None
    assert (new.where, new.shm_bytes) == ("shm", 198 * GIB)
    assert new.memory_bytes > 198 * GIB
    old = size(llama(vllm_version="0.26.0"), Workload(context=8192, sessions=200), given_device(28)).host
    assert old is not None
    assert (old.where, old.shm_bytes) == ("pinned", 0)
    assert old.memlock_bytes == 256 * GIB
    assert "rounds up to a power of two" in old.notes[0]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.26.0", 52), ("0.27.1", 51), ("0.32.0", 51)],
)
def test_chunks_that_a_tier_holds(version: str, expected: int) -> None:
    """5000 bytes per block and 4 blocks per chunk in 1 MiB, as vLLM's own class counted them."""
    assert chunks(2**20, 5000, blocks_per_chunk=4, vllm_version=version) == expected


def test_chunks_of_several_ranks() -> None:
    assert chunk_bytes(4096, world_size=4) == 4 * 4096
    assert chunk_bytes(4096, world_size=4, replicated=True) == 4096
    assert chunk_bytes(4096, world_size=4, replicated=True, vllm_version="0.26.0") == 4 * 4096
    assert chunks(0, 4096) == 0
    with pytest.raises(UsageError, match="world_size: got 0"):
        chunks(1, 1, world_size=0)
    with pytest.raises(UsageError, match="cpu_bytes_to_use: got -1"):
        chunks(-1, 1)


def test_simple_cpu_blocks_are_at_least_one() -> None:
    assert simple_cpu_blocks(10 * 4096, 4096) == 10
    assert simple_cpu_blocks(100, 4096) == 1


@given(
    sessions=st.integers(1, 10_000),
    context=st.integers(1, 100_000),
    held=st.integers(0, 2**42),
    extra=st.integers(0, 2**36),
)
def test_a_tier_never_grows_with_the_device_and_never_shrinks_with_sessions(
    sessions: int, context: int, held: int, extra: int
) -> None:
    kv = llama()
    work = Workload(context=context, sessions=sessions)
    tier = size(kv, work, Device(kv_bytes_per_rank=held, how="")).tier_bytes
    assert size(kv, work, Device(kv_bytes_per_rank=held + extra, how="")).tier_bytes <= tier
    more = Workload(context=context, sessions=sessions + 1)
    assert size(kv, more, Device(kv_bytes_per_rank=held, how="")).tier_bytes >= tier


@pytest.mark.parametrize(
    ("field", "value"), [("context", 0), ("sessions", -1), ("dp", 0), ("chunk_tokens", 0), ("headroom", Fraction(-1))]
)
def test_workloads_that_make_no_sense(field: str, value: object) -> None:
    numbers: dict[str, Any] = {"context": 1, "sessions": 1, field: value}
    with pytest.raises(UsageError, match=r"expected (0|1)"):
        Workload(**numbers)


def test_pipeline_stages_are_cut_as_vllm_cuts_them() -> None:
    kv = llama(pp=3)
    assert kv.rank_bytes_per_block == tuple(n * 65536 for n in (11, 11, 10))
    assert kv.serving.max_in_flight_tokens == 4 * 8192
    with pytest.raises(SizingError, match="cannot be cut into 64 pipeline stages"):
        llama(pp=64)


def test_explicit_numbers_are_checked() -> None:
    with pytest.raises(UsageError, match="--layers: got -1"):
        explicit_kv(layers=-1, kv_heads=8, head_dim=128)
    with pytest.raises(SizingError, match="6 KV heads cannot be divided over 4"):
        explicit_kv(layers=1, kv_heads=6, head_dim=128, serving=Serving(tp=4))
