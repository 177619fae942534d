"""The tier that a workload needs: the warm set, less what the device holds, times headroom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any

from pytest_kvoffload.catalog.host_memory import Platform
from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.sizing.backends import BackendSetting, HostNeeds, backend_settings, host_needs
from pytest_kvoffload.sizing.chunks import chunk_bytes
from pytest_kvoffload.sizing.result import SCHEMA_VERSION, ModelKV
from pytest_kvoffload.sizing.spec import CROSS, MLA, STATE, ceil_div, round_up
from pytest_kvoffload.sizing.units import GIB, show_bytes

DEFAULT_HEADROOM = Fraction(15, 100)
DEFAULT_UTILISATION = Fraction(92, 100)
"""vLLM's ``--gpu-memory-utilization`` (0.32.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be kept warm.

    Attributes:
        context: tokens of one session when it is revisited.
        sessions: how many sessions come back, over all replicas.
        dp: data parallel replicas; each has a tier of its own and a share of the sessions.
        chunk_tokens: tokens of one chunk of the tier; ``None`` is the device's block.
        headroom: fraction on top; 0.15 is 15 %.
    """

    context: int
    sessions: int
    dp: int = 1
    chunk_tokens: int | None = None
    headroom: Fraction = DEFAULT_HEADROOM

    def __post_init__(self) -> None:
        for name in ("context", "sessions", "dp"):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name}: got {value}; expected 1 or more")
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise UsageError(f"chunk: got {self.chunk_tokens}; expected 1 token or more")
        if self.headroom < 0:
            raise UsageError(f"headroom: got {float(self.headroom)}; expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """KV memory of one GPU, in bytes, and how it was found."""

    kv_bytes_per_rank: int
    how: str

    def __post_init__(self) -> None:
        if self.kv_bytes_per_rank < 0:
            raise UsageError(f"device KV: got {self.kv_bytes_per_rank} bytes; expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeResult:
    """A tier, with every step that led to it. Bytes; "total" is over all ranks of one replica."""

    kv: ModelKV
    workload: Workload
    device: Device
    sessions_per_replica: int
    chunk_tokens: int
    session_bytes_per_rank: int
    copies: int
    """How many ranks' bytes the tier keeps: all of them, or one where latents are the same everywhere."""
    warm_bytes: int
    device_bytes: int
    tier_bytes: int
    """0 when no tier is needed."""
    recommended_bytes: int
    """``tier_bytes`` rounded up to whole GiB: what the settings below say."""
    settings: tuple[BackendSetting, ...]
    host: HostNeeds | None
    steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def needed(self) -> bool:
        """Whether the warm set exceeds the device at all."""
        return self.tier_bytes > 0

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data; ``schema_version`` grows when a field changes its meaning."""
        return {
            "schema_version": SCHEMA_VERSION,
            **self.kv.as_dict(self.workload.context),
            "dp": self.workload.dp,
            "sessions": self.workload.sessions,
            "sessions_per_replica": self.sessions_per_replica,
            "chunk_tokens": self.chunk_tokens,
            "headroom": float(self.workload.headroom),
            "session_bytes_per_rank": self.session_bytes_per_rank,
            "copies": self.copies,
            "warm_bytes": self.warm_bytes,
            "device_kv_bytes_per_rank": self.device.kv_bytes_per_rank,
            "device_bytes": self.device_bytes,
            "tier_needed": self.needed,
            "tier_bytes": self.tier_bytes,
            "tier_gib": round(self.tier_bytes / GIB, 4),
            "recommended_bytes": self.recommended_bytes,
            "settings": {setting.key: setting.value for setting in self.settings},
            "host": None if self.host is None else self.host.as_dict(),
            "steps": list(self.steps),
            "notes": [*self.kv.notes, *self.notes],
        }


def device_from_gpu(
    *,
    gpu_memory: int,
    weights: int,
    utilisation: Fraction = DEFAULT_UTILISATION,
    overhead: int = 0,
    ranks: int = 1,
) -> Device:
    """Return what is left for KV on one GPU: ``ceil(memory x utilisation) - weights / ranks - overhead``.

    Args:
        gpu_memory: bytes of one GPU.
        weights: bytes of the whole model's weights, spread over the ranks.
        utilisation: as ``--gpu-memory-utilization``.
        overhead: activations, CUDA graphs and the like on one GPU, bytes.
        ranks: tensor parallel x pipeline parallel.

    Raises:
        UsageError: out of range, or nothing is left.
    """
    if not 0 < utilisation <= 1:
        raise UsageError(f"utilisation: got {float(utilisation)}; expected more than 0 and at most 1")
    usable = ceil(gpu_memory * utilisation)
    share = ceil_div(weights, ranks)
    left = usable - share - overhead
    if left <= 0:
        raise UsageError(
            f"no memory is left for KV: {show_bytes(gpu_memory)} x {float(utilisation):g} = "
            f"{show_bytes(usable)}, less weights "
            f"{show_bytes(share)} and overhead {show_bytes(overhead)}"
        )
    how = (
        f"{show_bytes(gpu_memory)} x {float(utilisation):g} - weights {show_bytes(share)} - overhead "
        f"{show_bytes(overhead)} "
        f"= {show_bytes(left)} per GPU"
    )
    return Device(kv_bytes_per_rank=left, how=how)


def device_from_blocks(kv: ModelKV, num_gpu_blocks: int) -> Device:
    """Return what the server's own ``num_gpu_blocks`` holds (from its log or ``vllm:cache_config_info``)."""
    if num_gpu_blocks < 1:
        raise UsageError(f"num_gpu_blocks: got {num_gpu_blocks}; expected 1 or more")
    total = num_gpu_blocks * kv.padded_bytes_per_block
    return Device(
        kv_bytes_per_rank=total,
        how=f"{num_gpu_blocks:,} blocks x {kv.padded_bytes_per_block:,} B = {show_bytes(total)} per GPU",
    )


def session_chunks(kv: ModelKV, context: int, chunk_tokens: int) -> int:
    """Return the chunks of blocks that a tier stores for one session, over all groups, in device blocks.

    A group of full attention or latents stores ``ceil(context / chunk)`` chunks; so do windows and local chunks: their
    blocks are stored while they are computed and age out only by eviction. A state is stored at the end of each
    scheduler step (``max_num_batched_tokens``) and at the end. Cross attention belongs to the encoder's input.
    """
    blocks_per_chunk = max(1, chunk_tokens // kv.block_size)
    total = 0
    for group in kv.groups:
        kind = group.specs[0].kind
        if kind == STATE:
            count = ceil_div(context, kv.serving.max_num_batched_tokens) + 1
        elif kind == CROSS:
            count = ceil_div(kv.serving.max_num_batched_tokens, group.block_size * blocks_per_chunk)
        else:
            count = ceil_div(context, group.block_size * blocks_per_chunk)
        total += count * blocks_per_chunk
    return total


def size(kv: ModelKV, workload: Workload, device: Device, *, platform: Platform = "cuda") -> SizeResult:
    """Compute the tier that a workload needs.

    ``tier = (sessions x bytes per session - bytes of the device) x (1 + headroom)``, over all ranks of one replica.

    Args:
        kv: the model's cache (:func:`model_kv` or :func:`explicit_kv`).
        workload: sessions and their length.
        device: KV memory of one GPU.
        platform: ``cuda``, ``rocm``, ``xpu`` or ``cpu``; decides where the host tier's bytes live.

    Raises:
        UsageError: a number makes no sense.
    """
    serving = kv.serving
    notes: list[str] = []
    if workload.context > kv.max_model_len:
        notes.append(f"context {workload.context} is longer than the model's max_model_len {kv.max_model_len}")
    block = kv.block_size
    chunk = block if workload.chunk_tokens is None else round_up(workload.chunk_tokens, block)
    if workload.chunk_tokens is not None and chunk != workload.chunk_tokens:
        notes.append(
            f"chunk {workload.chunk_tokens} is rounded up to {chunk}, a multiple of the block of {block} tokens"
        )
    sessions = ceil_div(workload.sessions, workload.dp)
    blocks = session_chunks(kv, workload.context, chunk)
    ranks = kv.world_size
    # Until 0.28 only one group of plain latents is kept once for all ranks (offloading/config.py 0.27.1:118, 0.32:158).
    plain = len(kv.groups) == 1 and kv.groups[0].kind == MLA
    replicated = (
        kv.latent_only
        and (plain or serving.at_least("0.29"))
        and serving.tp > 1
        and serving.pp == 1
        and serving.at_least("0.27")
        and platform == "cuda"
    )
    copies = 1 if replicated else ranks
    per_rank = blocks * kv.padded_bytes_per_block
    warm = sessions * per_rank * copies
    # A replicated cache fills every rank's memory with the same blocks: the device holds one rank's worth of sessions.
    held = device.kv_bytes_per_rank * copies
    surplus = warm - held
    tier = ceil(surplus * (1 + workload.headroom)) if surplus > 0 else 0
    one_chunk = chunk_bytes(
        kv.padded_bytes_per_block,
        world_size=ranks,
        blocks_per_chunk=chunk // block,
        replicated=replicated,
        vllm_version=serving.vllm_version,
    )
    if tier:
        tier = max(tier, one_chunk)
    recommended = round_up(tier, GIB)
    steps = (
        f"one block of {block} tokens costs {kv.padded_bytes_per_block:,} B per rank; "
        f"a session of {workload.context:,} tokens takes {blocks:,} blocks (chunks of {chunk} tokens)",
        f"bytes per session: {show_bytes(per_rank)} per rank"
        + (f", {show_bytes(per_rank * copies)} over {copies} ranks" if copies > 1 else ""),
        f"warm set: {sessions:,} sessions = {show_bytes(warm)}"
        + (f" (of {workload.sessions:,} over {workload.dp} replicas)" if workload.dp > 1 else ""),
        f"device holds: {device.how}" + (f", x {copies} ranks = {show_bytes(held)}" if copies > 1 else ""),
        f"tier: ({show_bytes(warm)} - {show_bytes(held)}) x {float(1 + workload.headroom):g} = {show_bytes(tier)}"
        if tier
        else f"tier: {show_bytes(warm)} - {show_bytes(held)} is not positive: no tier needed",
    )
    return SizeResult(
        kv=kv,
        workload=workload,
        device=device,
        sessions_per_replica=sessions,
        chunk_tokens=chunk,
        session_bytes_per_rank=per_rank,
        copies=copies,
        warm_bytes=warm,
        device_bytes=held,
        tier_bytes=tier,
        recommended_bytes=recommended,
        settings=backend_settings(kv, recommended, copies=copies) if tier else (),
        host=host_needs(kv, recommended, platform=platform) if tier else None,
        steps=steps,
        notes=tuple(notes),
    )


def table(
    kv: ModelKV, device: Device, contexts: tuple[int, ...], sessions: tuple[int, ...], *, base: Mapping[str, Any]
) -> list[list[int]]:
    """Return tier bytes for each context (row) and number of sessions (column); ``base`` are the "
    "other workload fields."""
    return [
        [size(kv, Workload(context=context, sessions=count, **base), device).tier_bytes for count in sessions]
        for context in contexts
    ]
