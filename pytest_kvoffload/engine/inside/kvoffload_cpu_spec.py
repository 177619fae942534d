"""Offload specs that let vLLM's own OffloadingConnector run on vLLM's CPU backend.

Only this folder goes on PYTHONPATH, and vLLM imports this module in its API server, its engine core and every worker:
it depends on vLLM, torch, numpy and what else lies there. Named by ``spec_name`` and ``spec_module_path`` in the extra
configuration.

Scheduler, manager, eviction, tiers and metrics are vLLM's. What differs is the worker: vLLM's copies with CUDA, this
one with plain memory copies. It can also model a slower link between device and tier:

``link_bandwidth_bytes_per_second``  a transfer occupies the link for bytes / bandwidth (default: no limit);
``link_latency_seconds``  and finishes this much later (default 0).

One link serves both directions, one transfer after the other. The bytes are copied at once, which is safe (the
scheduler hands out neither side of a transfer in flight); what waits is the report that it is done.

Written for vLLM 0.26 to 0.33: "blocks" were renamed "chunks" in 0.30, the shared region's views in 0.28, and 0.33
passes ``expedited`` to loads.
"""

from __future__ import annotations

import importlib
import inspect
import mmap
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

try:
    import numpy as np
    import torch
    from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    # Before vLLM's object tier imports nixl. It lies beside this file.
    importlib.import_module("kvoffload_nixl").prefer_loadable()
except ModuleNotFoundError as error:  # pragma: no cover - seen only where the link model alone is tested
    if error.name not in ("torch", "numpy", "vllm"):
        raise
    OffloadingWorker = CPUOffloadingSpec = TieringOffloadingSpec = object


HOST_TIER_NAME = "kvoffload_host_tier"


class LinkModel:
    """When each transfer over one serialised link is done.

    Args:
        bandwidth_bytes_per_second: ``None`` means unlimited.
        latency_seconds: added to every transfer, overlapping with the next one's bytes.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        bandwidth_bytes_per_second: float | None = None,
        latency_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bandwidth = bandwidth_bytes_per_second
        self.latency = latency_seconds
        self.clock = clock
        self._free_at = 0.0

    @classmethod
    def from_extra_config(cls, extra: Mapping[str, Any]) -> LinkModel:
        """Read the two keys; a value that is no number in range is refused at boot, by name."""
        bandwidth = _number(extra, "link_bandwidth_bytes_per_second")
        latency = _number(extra, "link_latency_seconds")
        if bandwidth is not None and bandwidth <= 0:
            raise ValueError(f"link_bandwidth_bytes_per_second must be above 0, got {bandwidth!r}")
        if latency is not None and latency < 0:
            raise ValueError(f"link_latency_seconds must be at least 0, got {latency!r}")
        return cls(bandwidth, latency or 0.0)

    def submit(self, nbytes: int, started: float, copied: float) -> tuple[float, float]:
        """Book a transfer whose real copy ran from ``started`` to ``copied``.

        Returns:
            When it is done, and how long it took without waiting for the link (never under the real copy's time).
        """
        busy = nbytes / self.bandwidth if self.bandwidth else 0.0
        begin = max(started, self._free_at)
        self._free_at = begin + busy
        done = max(copied, self._free_at + self.latency)
        return done, max(copied - started, busy + self.latency, 1e-9)


def _number(extra: Mapping[str, Any], key: str) -> float | None:
    value = extra.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ValueError(f"{key} must be a number, got {value!r}")
    return float(value)


class PendingTransfers:
    """Transfers that were submitted and not yet reported, each reported exactly once."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None] = time.sleep) -> None:
        self.clock, self.sleep = clock, sleep
        self._pending: dict[int, tuple[float, Any]] = {}

    def add(self, job_id: int, done_at: float, result: Any) -> None:
        """Remember a transfer that is done at ``done_at``."""
        self._pending[job_id] = (done_at, result)

    def finished(self) -> list[Any]:
        """Return and forget every result that is due."""
        now = self.clock()
        due = [job_id for job_id, (done_at, _) in self._pending.items() if done_at <= now]
        return [self._pending.pop(job_id)[1] for job_id in due]

    def wait(self, job_ids: set[int]) -> None:
        """Block until those jobs are due; unknown ids are done already."""
        latest = max((self._pending[job_id][0] for job_id in job_ids if job_id in self._pending), default=0.0)
        while (left := latest - self.clock()) > 0:
            self.sleep(left)

    def clear(self) -> None:
        """Forget everything."""
        self._pending.clear()


def sub_blocks(chunk_ids: list[int], blocks_per_chunk: int, skip: int, count: int) -> tuple[list[int], list[int]]:
    """Chunk and slot of ``count`` consecutive blocks, the first of which is ``skip`` blocks into the first chunk."""
    positions = range(skip, skip + count)
    return [chunk_ids[p // blocks_per_chunk] for p in positions], [p % blocks_per_chunk for p in positions]


class MemcpyWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies blocks between the CPU backend's KV cache and host memory.

    Args:
        kv_caches: vLLM's canonical view: tensors of (blocks, page bytes), and per group the tensors it uses.
        blocks_per_chunk: device blocks in one host chunk.
        num_chunks: capacity of the host tier.
        link: the link model.
        region: the shared /dev/shm region (tiering: the scheduler's secondary tiers read the same bytes), or
            ``None`` for private memory.
    """

    def __init__(
        self, kv_caches: Any, blocks_per_chunk: int, num_chunks: int, link: LinkModel, region: Any = None
    ) -> None:
        self.blocks_per_chunk = blocks_per_chunk
        self.link = link
        self.region = region
        self.groups = kv_caches.group_data_refs
        self.device: list[Any] = []
        self.host: list[Any] = []
        self.pending = PendingTransfers(link.clock)
        for canonical in kv_caches.tensors:
            page = canonical.page_size_bytes
            tensor = canonical.tensor
            if tensor.dtype != torch.int8 or tensor.ndim != 2:
                tensor = tensor.view(torch.int8).view(-1, page)
            self.device.append(tensor)
            if region is None:
                host = _host_memory(num_chunks, blocks_per_chunk * page)
            else:  # rows are strided over the region; 0.26 and 0.27 call it create_next_view
                view = getattr(region, "create_next_worker_view", None) or region.create_next_view
                host = view(page * blocks_per_chunk)
            self.host.append(host.unflatten(1, (blocks_per_chunk, page)))

    def _transfer(self, job_id: int, device_spec: Any, host_spec: Any, *, store: bool) -> bool:
        started = self.link.clock()
        nbytes = 0
        # Block ids are int64 until 0.29 and int32 after; torch indexes with int64.
        device_ids = np.asarray(device_spec.block_ids, dtype=np.int64)
        host_ids = np.asarray(host_spec.block_ids, dtype=np.int64).tolist()
        if not len(device_spec.group_sizes) == len(self.groups) == len(device_spec.block_indices):
            raise RuntimeError("offload transfer and KV cache disagree about the number of groups")
        at_device = at_host = 0
        for group, (count, first) in enumerate(zip(device_spec.group_sizes, device_spec.block_indices, strict=True)):
            count, first = int(count), int(first)
            if count == 0:
                continue
            skip = first % self.blocks_per_chunk
            chunks = -(-(count + skip) // self.blocks_per_chunk)
            rows = torch.from_numpy(device_ids[at_device : at_device + count])
            chunk_list, slot_list = sub_blocks(host_ids[at_host : at_host + chunks], self.blocks_per_chunk, skip, count)
            chunk, slot = torch.tensor(chunk_list), torch.tensor(slot_list)
            for ref in self.groups[group]:
                device, host, page = self.device[ref.tensor_idx], self.host[ref.tensor_idx], ref.page_size_bytes
                if store:
                    host[chunk, slot, :page] = device[rows, :page]
                else:
                    device[rows, :page] = host[chunk, slot, :page]
                nbytes += count * page
            at_device += count
            at_host += chunks
        if at_device != len(device_ids) or at_host != len(host_ids):
            raise RuntimeError("offload transfer names more blocks or chunks than its groups hold")
        done_at, seconds = self.link.submit(nbytes, started, self.link.clock())
        # Both numbers must be there, or vLLM exports no byte and time metrics.
        result = TransferResult(job_id=job_id, success=True, transfer_size=nbytes, transfer_time=seconds)
        self.pending.add(job_id, done_at, result)
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Device to host."""
        return self._transfer(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        """Host to device; ``expedited`` (0.33) loads are waited for by vLLM itself."""
        return self._transfer(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[Any]:
        """Results of the transfers that are done, each once."""
        return self.pending.finished()

    def wait(self, job_ids: set[int]) -> None:
        """Block until those jobs are done."""
        self.pending.wait(job_ids)

    def shutdown(self) -> None:
        """Drop all memory; the shared region is unmapped and, by its creator, removed."""
        self.pending.clear()
        self.host.clear()
        self.device.clear()
        if self.region is not None:
            self.region.cleanup()
            self.region = None


def _host_memory(rows: int, row_bytes: int) -> Any:
    """Zeroed memory, taken as it is used, that /proc/PID/maps calls by its name: a test can break it from outside."""
    size = rows * row_bytes
    if size == 0 or not hasattr(os, "memfd_create"):
        return torch.zeros((rows, row_bytes), dtype=torch.int8)
    descriptor = os.memfd_create(HOST_TIER_NAME)
    try:
        os.ftruncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    return torch.frombuffer(memory, dtype=torch.int8).view(rows, row_bytes)  # which keeps the mapping alive


def _num_chunks(spec: Any) -> int:
    chunks = getattr(spec, "num_chunks", None)
    return int(spec.num_blocks if chunks is None else chunks)  # num_blocks until 0.29


class KVOffloadHostSpec(CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPUOffloadingSpec with a worker for the CPU backend; the host tier is private memory."""

    _worker: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._link = LinkModel.from_extra_config(self.extra_config)

    def get_worker(self, kv_caches: Any) -> Any:
        """Return the one worker of this process."""
        if self._worker is None:
            self._worker = MemcpyWorker(kv_caches, self.blocks_per_chunk, _num_chunks(self), self._link)
        return self._worker


class KVOffloadTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """vLLM's TieringOffloadingSpec with a worker for the CPU backend, which writes in the shared region."""

    _worker: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._link = LinkModel.from_extra_config(self.extra_config)

    def get_worker(self, kv_caches: Any) -> Any:
        """Return the one worker of this process."""
        if self._worker is None:
            region = self._map_region()
            try:
                self._worker = MemcpyWorker(kv_caches, self.blocks_per_chunk, _num_chunks(self), self._link, region)
            except BaseException:
                region.cleanup()
                raise
        return self._worker

    def _map_region(self) -> Any:
        chunk_names = "num_chunks" in inspect.signature(SharedOffloadRegion.__init__).parameters  # 0.30+
        arguments = {
            "engine_id": self.config.engine_id,
            "rank": 0 if getattr(self, "replicated_layout", False) else self.config.parallel.rank,
            "cpu_page_size": self.cpu_page_size_per_worker,
            "num_chunks" if chunk_names else "num_blocks": _num_chunks(self),
            "kv_bytes_per_chunk" if chunk_names else "kv_bytes_per_block": self.kv_bytes_per_chunk,
        }
        return SharedOffloadRegion(**arguments)
