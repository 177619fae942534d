"""How many chunks a native host tier holds: vLLM's own arithmetic."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.sizing.spec import round_up

CHUNK_ALIGNMENT_BYTES = 4096
"""From 0.27 on each chunk starts on a page of the shared mapping (v1/kv_offload/cpu/spec.py BLOCK_SIZE_ALIGNMENT)."""


def chunk_bytes(
    worker_bytes_per_block: int,
    *,
    world_size: int = 1,
    blocks_per_chunk: int = 1,
    replicated: bool = False,
    vllm_version: str = "0.32.0",
) -> int:
    """Return the bytes of one chunk over all ranks, alignment included.

    Args:
        worker_bytes_per_block: one rank's bytes per block id (``padded_bytes_per_block``).
        world_size: tensor parallel x pipeline parallel ranks.
        blocks_per_chunk: device blocks in one chunk.
        replicated: one copy serves all ranks (latents only, tensor parallel on one node, 0.27 and later on CUDA).
        vllm_version: before 0.27 there was no alignment and never one copy for all.

    Raises:
        UsageError: a number below 1, or not a version.
    """
    for name, value in (
        ("worker_bytes_per_block", worker_bytes_per_block),
        ("world_size", world_size),
        ("blocks_per_chunk", blocks_per_chunk),
    ):
        if value < 1:
            raise UsageError(f"{name}: got {value}; expected 1 or more")
    try:
        shared = Version(vllm_version) >= Version("0.27")
    except InvalidVersion:
        raise UsageError(f"vllm_version: got {vllm_version!r}; expected a version such as 0.32.0") from None
    copies = 1 if replicated and shared else world_size
    size = worker_bytes_per_block * copies * blocks_per_chunk
    return round_up(size, CHUNK_ALIGNMENT_BYTES) if shared else size


def chunks(
    cpu_bytes_to_use: int,
    worker_bytes_per_block: int,
    *,
    world_size: int = 1,
    blocks_per_chunk: int = 1,
    replicated: bool = False,
    vllm_version: str = "0.32.0",
) -> int:
    """Return the number of chunks that a tier of ``cpu_bytes_to_use`` bytes (all ranks together) holds.

    Source: ``v1/kv_offload/cpu/spec.py`` (0.26.0:97, 0.27.1:91-103, 0.32.0:104-119). Arguments and errors as for
    :func:`chunk_bytes`.
    """
    if cpu_bytes_to_use < 0:
        raise UsageError(f"cpu_bytes_to_use: got {cpu_bytes_to_use}; expected 0 or more")
    one = chunk_bytes(
        worker_bytes_per_block,
        world_size=world_size,
        blocks_per_chunk=blocks_per_chunk,
        replicated=replicated,
        vllm_version=vllm_version,
    )
    return int(cpu_bytes_to_use) // one


def simple_cpu_blocks(cpu_bytes_per_rank: int, worker_bytes_per_block: int) -> int:
    """Return the blocks that SimpleCPUOffloadConnector keeps on each rank (at least 1).

    Source: ``v1/simple_kv_offload/manager.py`` (0.32.0:294): ``max(1, num_gpu_blocks * capacity // device bytes)``,
    where the device bytes are ``num_gpu_blocks * worker_bytes_per_block``.
    """
    if cpu_bytes_per_rank < 0 or worker_bytes_per_block < 1:
        raise UsageError("cpu_bytes_per_rank must be 0 or more and worker_bytes_per_block 1 or more")
    return max(1, cpu_bytes_per_rank // worker_bytes_per_block)
