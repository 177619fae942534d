"""The same tier in each backend's own unit and spelling, and what it asks of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_kvoffload.catalog.host_memory import Platform, backing_of, load_host_memory
from pytest_kvoffload.sizing.result import ModelKV
from pytest_kvoffload.sizing.spec import ceil_div
from pytest_kvoffload.sizing.units import GIB, show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSetting:
    """One line to paste. ``unit`` says what the number counts."""

    key: str
    value: str
    line: str
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeeds:
    """What the tier asks of the machine or pod. Bytes."""

    where: str
    """``shm`` (a file in /dev/shm), ``pinned`` or ``private``."""
    shm_bytes: int
    memory_bytes: int
    memlock_bytes: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "where": self.where,
            "shm_bytes": self.shm_bytes,
            "memory_bytes": self.memory_bytes,
            "memlock_bytes": self.memlock_bytes,
            "notes": list(self.notes),
        }


def backend_settings(kv: ModelKV, total_bytes: int, *, copies: int) -> tuple[BackendSetting, ...]:
    """Return the settings of every backend for a tier of ``total_bytes`` over all ranks of one replica.

    Args:
        kv: the model's cache.
        total_bytes: a whole number of GiB.
        copies: ranks whose bytes the tier keeps.
    """
    ranks = kv.world_size
    total_gib = ceil_div(total_bytes, GIB)
    per_rank_bytes = ceil_div(total_bytes, copies)
    per_rank_gib = ceil_div(per_rank_bytes, GIB)
    return (
        BackendSetting(
            key="kv_offloading_size",
            value=str(total_gib),
            line=f"--kv-offloading-size {total_gib}",
            unit="GiB, all ranks of one server together",
            source="vllm/config/cache.py kv_offloading_size, config/vllm.py:1122 (x 2**30)",
        ),
        BackendSetting(
            key="cpu_bytes_to_use",
            value=str(total_bytes),
            line=(
                '--kv-transfer-config \'{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
                f'"kv_connector_extra_config":{{"cpu_bytes_to_use":{total_bytes}}}}}\''
            ),
            unit="bytes, all ranks of one server together",
            source="vllm/v1/kv_offload/cpu/spec.py",
        ),
        BackendSetting(
            key="cpu_bytes_to_use_per_rank",
            value=str(per_rank_bytes),
            line=(
                '--kv-transfer-config \'{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both",'
                f'"kv_connector_extra_config":{{"cpu_bytes_to_use":{per_rank_bytes * ranks},'
                f'"cpu_bytes_to_use_per_rank":{per_rank_bytes}}}}}\''
            ),
            unit="bytes per rank",
            source="vllm/distributed/kv_transfer/kv_connector/v1/simple_cpu_offload_connector.py:87-102",
        ),
        BackendSetting(
            key="LMCACHE_MAX_LOCAL_CPU_SIZE",
            value=str(per_rank_gib),
            line=f"LMCACHE_MAX_LOCAL_CPU_SIZE={per_rank_gib}",
            unit="GiB per rank (LMCache multiplies by 1024**3; a unit in the value switches it off)",
            source="lmcache local_cpu_backend.py:403",
        ),
        BackendSetting(
            key="l1_size_gb",
            value=str(total_gib),
            line=f"lmcache server --l1-size-gb {total_gib} --eviction-policy LRU",
            unit="GiB, one server for all ranks",
            source="lmcache MP server, --l1-size-gb",
        ),
        BackendSetting(
            key="cpuOffloadingBufferSize",
            value=str(per_rank_gib),
            line=f'cpuOffloadingBufferSize: "{per_rank_gib}"',
            unit="GiB per rank, a whole number in quotes without a unit",
            source="production-stack deployment-vllm-multi.yaml:337 (sets LMCACHE_MAX_LOCAL_CPU_SIZE)",
        ),
        BackendSetting(
            key="hicache_size",
            value=str(ceil_div(per_rank_bytes, 10**9)),
            line=f"--enable-hierarchical-cache --hicache-size {ceil_div(per_rank_bytes, 10**9)}",
            unit="GB (10**9 bytes) per rank; SGLang's own model code may keep other bytes per token",
            source="sglang/srt/mem_cache/pool_host/base.py (host_size * 1e9 // size_per_token)",
        ),
    )


def host_needs(kv: ModelKV, total_bytes: int, *, platform: Platform) -> HostNeeds:
    """Return what vLLM's native host tier of ``total_bytes`` asks of the host.

    Sources: ``catalog/host_memory.toml``.
    """
    memory = load_host_memory()
    version = kv.serving.vllm_version
    try:
        where: str = backing_of("host", platform=platform, version=version).where
    except ValueError:
        where = "private"
    queue = memory.queue.free_bytes
    processes = memory.processes.base_bytes + memory.processes.worker_bytes * kv.world_size
    held = total_bytes
    notes = []
    if where == "pinned":
        per_rank = ceil_div(total_bytes, kv.world_size)
        held = (1 << max(per_rank - 1, 0).bit_length()) * kv.world_size
        notes.append(
            f"vLLM {version} pins with torch's allocator, which rounds up to a power of two: "
            f"{show_bytes(total_bytes)} may "
            f"take {show_bytes(held)}"
        )
    if where == "shm":
        notes.append(
            "the tier is a file in /dev/shm that is filled at boot; it counts against the container's memory limit too "
            "(Docker's default /dev/shm of 64 MiB is too small: --shm-size, or an emptyDir of medium Memory)"
        )
    notes.append(
        "memory is tier + about this much for the server's processes; weights that are loaded on the host come on top"
    )
    return HostNeeds(
        where=where,
        shm_bytes=(held if where == "shm" else 0) + (queue if kv.world_size > 1 else 0),
        memory_bytes=held + processes,
        memlock_bytes=held,
        notes=tuple(notes),
    )
