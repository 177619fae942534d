"""Derivation of DeepSeek-V4: compressed latents, window latents, index keys and compressor states, packed in blocks."""

from __future__ import annotations

from pytest_kvoffload.errors import SizingError
from pytest_kvoffload.sizing.attention_models import layer_count
from pytest_kvoffload.sizing.cache_dtype import FP8
from pytest_kvoffload.sizing.heads import check_query_heads, query_heads
from pytest_kvoffload.sizing.plan import Context, Plan, PlanBuilder
from pytest_kvoffload.sizing.spec import MLA, WINDOW_MLA, LayerSpec

BLOCK = 256
"""Preferred by the window backend (sparse_swa.py get_preferred_block_size)."""
WINDOW_BLOCK = 64
PACKED_TOKEN_BYTES = 584
"""448 bytes without rotary positions, 128 with, 8 of scales."""
PAGE_ALIGNMENT = 576
STATE_BLOCKS = {4: 4, 128: 8}
"""Compression ratio to the block size of the compressor's state (compressor.py:160-170)."""


def deepseek_v4(context: Context) -> Plan:
    """Each layer has a window of latents; a compressed one has latents, an indexer (ratio 4) and compressor states."""
    view = context.view
    layers = layer_count(context)
    check_query_heads(query_heads(view), context.serving.tp)
    if context.cache_dtype not in ("auto", *FP8, "fp8_ds_mla"):
        raise SizingError(
            f"vLLM refuses --kv-cache-dtype {context.cache_dtype} here: DeepseekV4 only supports fp8 kv-cache format"
        )
    ratios = view.integers("compress_ratios")
    if ratios is None or len(ratios) < layers:
        raise view.bad("compress_ratios", f"expected {layers} entries (0, 1, 4 or 128)")
    size = view.integer("head_dim")
    window = view.integer("sliding_window")
    index = view.integer("index_head_dim", default=128)
    build = PlanBuilder(context)
    for i in range(layers):
        ratio = max(1, ratios[i])
        if ratio not in (1, *STATE_BLOCKS):
            raise view.bad("compress_ratios", f"got {ratio} for layer {i}; known: 0, 1, 4, 128")
        if ratio == 4:
            build.add(_latent(index + index // 128 * 4, ratio, None, role="INDEXER"), i)
            build.add(_compressor(index, ratio), i)
        build.add(
            LayerSpec(
                kind=WINDOW_MLA,
                block_size=WINDOW_BLOCK,
                head_size=size,
                dtype="uint8",
                content_bytes=PACKED_TOKEN_BYTES,
                window=window,
                alignment=PAGE_ALIGNMENT,
            ),
            i,
        )
        if ratio > 1:
            build.add(_latent(size, ratio, PACKED_TOKEN_BYTES, role="SPARSE"), i)
            build.add(_compressor(size, ratio), i)
    return Plan(
        layers=tuple(build.layers),
        positions=tuple(build.positions),
        decoder_layers=layers,
        kernel_block=BLOCK,
        latent=True,
        packed=True,
    )


def _latent(size: int, ratio: int, content: int | None, *, role: str) -> LayerSpec:
    return LayerSpec(
        kind=MLA,
        block_size=1,
        head_size=size,
        dtype="uint8",
        content_bytes=content,
        tokens_per_state=ratio,
        alignment=PAGE_ALIGNMENT,
        role=role,
    )


def _compressor(size: int, ratio: int) -> LayerSpec:
    """Return the state of a compressor: sums of keys and scores in float32, of two groups where groups overlap."""
    overlap = 2 if ratio == 4 else 1
    return LayerSpec(
        kind=WINDOW_MLA,
        block_size=STATE_BLOCKS[ratio],
        head_size=2 * overlap * size,
        dtype="float32",
        window=overlap * ratio,
        alignment=PAGE_ALIGNMENT,
        role="COMPRESSOR",
    )
