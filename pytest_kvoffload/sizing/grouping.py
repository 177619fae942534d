"""Block sizes, unified pages and groups, in vLLM's order.

Sources (0.32.0): ``platforms/interface.py`` 700-1130 (block sizes), ``v1/core/kv_cache_utils.py`` 1292 (unify),
1382-1490 (groups of equal size), 1497-1540 (bytes per block), 2159-2240 (order of the cases).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_kvoffload.errors import SizingError
from pytest_kvoffload.sizing.packing import packed_groups
from pytest_kvoffload.sizing.plan import Plan
from pytest_kvoffload.sizing.serving import Serving
from pytest_kvoffload.sizing.spec import (
    CHUNK,
    FULL,
    MLA,
    STATE,
    UNIFORM,
    WINDOW,
    Group,
    LayerSpec,
    ceil_div,
    round_up,
    same_type,
)

LATENT_HYBRID_ALIGNMENT = 128
"""Hybrid blocks of latents are multiples of 128 (platforms/interface.py:1045)."""


def settle(plan: Plan, serving: Serving, *, align: bool, max_model_len: int) -> tuple[int, tuple[LayerSpec, ...]]:
    """Choose the block size and give it to every layer.

    Args:
        plan: layers whose page is one token's.
        align: whether states are kept at block boundaries (prefix caching of hybrids).
        max_model_len: block size of a state that is not aligned.

    Returns:
        The server's block size and the layers.
    """
    block = _attention_block(plan, serving)
    padded_state: int | None = None
    states = [spec for spec in plan.layers if spec.kind == STATE]
    if plan.hybrid and states and not plan.attention_free:
        block, padded_state = _hybrid_block(plan, serving, block, max(spec.unpadded_page_bytes for spec in states))
    state_block = block if align else max_model_len
    layers = []
    for spec in plan.layers:
        if spec.kind == STATE:
            layers.append(replace(spec, block_size=state_block, padded_page_bytes=padded_state))
        elif spec.block_size != 1:
            layers.append(spec)
        elif spec.kind == WINDOW:
            layers.append(spec.with_block_size(_window_block(spec, plan, block, serving)))
        else:
            layers.append(spec.with_block_size(block))
    blocks = {spec.block_size for spec in layers if spec.is_attention}
    if blocks and block not in blocks:
        block = min(blocks)  # the server reports the block that its groups have
    return block, tuple(layers)


def group_layers(
    layers: Sequence[LayerSpec], *, hybrid_manager: bool = True, packed: bool = False
) -> tuple[Group, ...]:
    """Split layers into groups that share a block table.

    Raises:
        SizingError: pages cannot be unified, which vLLM refuses too.
    """
    specs = list(layers)
    if not specs:
        return ()
    if not hybrid_manager:
        specs = _promote(specs)
    indices = tuple(range(len(specs)))
    first = specs[0]
    if all(spec == first for spec in specs):
        return (Group(kind=first.kind, block_size=first.block_size, layers=indices, specs=tuple(specs)),)
    if same_type(specs):
        return (Group(kind=UNIFORM, block_size=first.block_size, layers=indices, specs=tuple(specs)),)
    if packed and len({spec.page_bytes for spec in specs}) > 1:
        return packed_groups(specs)
    return _equal_groups(_unify(specs))


def bytes_per_block(groups: Sequence[Group], members: frozenset[int] | None = None) -> int:
    """Return what one block id costs in the shared pool of one rank: the largest group's pages.

    Args:
        groups: the model's groups.
        members: positions of the layers that this rank has (pipeline stages); ``None`` is all.
    """
    best = 0
    for group in groups:
        pages = (
            round_up(spec.page_bytes, spec.stride_alignment)
            for index, spec in zip(group.layers, group.specs, strict=True)
            if members is None or index in members
        )
        best = max(best, sum(pages))
    return best


def _attention_block(plan: Plan, serving: Serving) -> int:
    if serving.block_size is not None:
        return serving.block_size
    kernel = plan.kernel_block
    default = serving.default_block_size
    block = default if default % kernel == 0 else kernel
    if plan.skipped_dtype:
        # Layers that keep the model's dtype share the pool with packed ones: the block grows until a packed page
        # (vLLM sums it at one byte an element) covers one kernel block of theirs (_align_heterogeneous_kv_block_size).
        plain = next(spec for spec in plan.layers if spec.content_bytes is None)
        packed_token = plain.kv_heads * (plain.head_size + plain.head_size_v)
        plain_token = plain.unpadded_page_bytes
        step = max(kernel, block)
        block = max(block, step * ceil_div(plain_token * kernel, step * packed_token))
    return block


def _hybrid_block(plan: Plan, serving: Serving, block: int, state_page: int) -> tuple[int, int | None]:
    attention = next(spec for spec in plan.layers if spec.is_attention)
    token = attention.unpadded_page_bytes
    alignment = max(plan.kernel_block, block)
    if plan.latent:
        alignment = max(alignment, LATENT_HYBRID_ALIGNMENT)
    needed = alignment * ceil_div(state_page, alignment * token)
    needed = round_up(needed, plan.kernel_block)
    block = max(block, needed)
    page = block * token
    return block, None if page == state_page else page


def _window_block(spec: LayerSpec, plan: Plan, block: int, serving: Serving) -> int:
    """Return the largest kernel block within the block size (attention.py 0.32.0:101, 619-668).

    0.27.1 takes the smallest kernel block and leaves it to the unified pages to scale it (attention.py:638-656).
    """
    if not serving.at_least("0.28"):
        return plan.kernel_block
    if spec.head_slots is not None:  # FlashInfer's kernels: 16, 32 or 64
        return max((size for size in (16, 32, 64) if size <= block), default=16)
    return max(plan.kernel_block, block // plan.kernel_block * plan.kernel_block)


def _unify(specs: list[LayerSpec]) -> list[LayerSpec]:
    largest = max(spec.page_bytes for spec in specs)
    unified = []
    for spec in specs:
        page = spec.page_bytes
        if page == largest:
            unified.append(spec)
        elif spec.kind == STATE:
            unified.append(replace(spec, padded_page_bytes=largest))
        elif largest % page == 0:
            unified.append(spec.with_block_size(spec.block_size * (largest // page)))
        elif spec.kind != MLA:
            unified.append(replace(spec, padded_page_bytes=largest))
        else:
            raise SizingError(
                f"vLLM refuses this: NotImplementedError, a page of {page} bytes is not divisible by "
                "the maximum page size "
                f"{largest} and cannot be padded (v1/core/kv_cache_utils.py:1292)"
            )
    return unified


def _equal_groups(specs: list[LayerSpec]) -> tuple[Group, ...]:
    buckets: dict[LayerSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        buckets.setdefault(spec, []).append(index)
    counts = [len(members) for members in buckets.values()]
    size = min(counts)
    if max(counts) < size * 1.5:
        size = max(counts)
    groups = []
    for spec, members in buckets.items():
        number = ceil_div(len(members), size)
        for i in range(number):
            part = tuple(members[i::number])
            groups.append(Group(kind=spec.kind, block_size=spec.block_size, layers=part, specs=(spec,) * len(part)))
    return tuple(groups)


def _promote(specs: list[LayerSpec]) -> list[LayerSpec]:
    """``--disable-hybrid-kv-cache-manager``: windows and chunks are allocated as full attention."""
    if same_type(specs) or not any(spec.kind in (FULL, MLA) for spec in specs):
        return specs
    if any(spec.kind == STATE for spec in specs):
        raise SizingError("vLLM refuses this: states cannot be promoted to full attention (hybrid manager disabled)")
    full_blocks = {spec.block_size for spec in specs if spec.kind in (FULL, MLA)}
    block = next(iter(full_blocks)) if len(full_blocks) == 1 else None
    return [
        replace(spec, kind=FULL, block_size=block or spec.block_size) if spec.kind in (WINDOW, CHUNK) else spec
        for spec in specs
    ]
