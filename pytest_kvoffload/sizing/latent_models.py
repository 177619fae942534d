"""Derivations of models with latent attention (MLA), dense and sparse, and of block-sparse attention (MiniMax-M3)."""

from __future__ import annotations

from dataclasses import replace

from pytest_kvoffload.sizing.attention_models import layer_count
from pytest_kvoffload.sizing.cache_dtype import FP8, latent_format
from pytest_kvoffload.sizing.heads import check_query_heads, head_size, heads_per_rank, kv_heads, query_heads
from pytest_kvoffload.sizing.plan import Context, Plan, PlanBuilder, attention_spec
from pytest_kvoffload.sizing.spec import MLA, LayerSpec
from pytest_kvoffload.sizing.view import ConfigView

LATENT_BLOCK_FP8 = 64
"""FlashMLA's block; FlashAttention's MLA takes 16 but has no fp8 (v1/attention/backends/mla/flashmla.py)."""
SPARSE_BLOCK = 64


def latent(context: Context) -> Plan:
    """Latent attention (MLA): one latent and one rotary key per token, whole on every rank."""
    view = context.view
    if view.has("index_topk"):
        return latent_sparse(context)
    if not view.has("kv_lora_rank"):
        return _latent_as_heads(context)
    layers = layer_count(context)
    check_query_heads(query_heads(view), context.serving.tp)
    per_layer = int(context.rule.options.get("per_layer", 1))
    spec = latent_spec(context, sparse=False)
    count = layers * per_layer
    return Plan(
        layers=(spec,) * count,
        positions=tuple(i // per_layer for i in range(count)),
        decoder_layers=layers,
        kernel_block=latent_block(context),
        latent=True,
    )


def latent_block(context: Context) -> int:
    """Return the block size that the dense latent backend asks for."""
    return LATENT_BLOCK_FP8 if context.cache_dtype in FP8 else 16


def latent_spec(context: Context, *, sparse: bool) -> LayerSpec:
    """Return the spec of one latent layer, page of one token."""
    size = context.view.integer("kv_lora_rank") + context.view.integer("qk_rope_head_dim", minimum=0)
    form, resolved = latent_format(context.cache_dtype, model_dtype=context.model_dtype, latent=size, sparse=sparse)
    return LayerSpec(
        kind=MLA,
        block_size=1,
        head_size=size,
        dtype=form.dtype,
        content_bytes=form.content_bytes,
        role="SPARSE",
        variant=resolved + (" leader" if sparse else ""),
    )


def latent_sparse(context: Context) -> Plan:
    """Latent attention with an indexer (DSA): its keys are fp8 with a scale per 128, whatever the cache dtype."""
    view = context.view
    layers = layer_count(context)
    check_query_heads(query_heads(view), context.serving.tp)
    dim = view.integer("index_head_dim")
    spec = latent_spec(context, sparse=True)
    # Sparse kernels read rows of 576 elements: the block's stride is a multiple of whole rows (never padded at
    # block 64).
    index = LayerSpec(kind=MLA, block_size=1, head_size=dim + dim // 128 * 4, dtype="uint8", role="INDEXER")
    build = PlanBuilder(context)
    for i in range(layers):
        if _has_indexer(view, i):
            build.add(index, i)
            build.add(spec, i)
        else:
            build.add(replace(spec, variant=spec.variant.removesuffix(" leader")), i)
    return Plan(
        layers=tuple(build.layers),
        positions=tuple(build.positions),
        decoder_layers=layers,
        kernel_block=SPARSE_BLOCK,
        latent=True,
    )


def minimax_m3(context: Context) -> Plan:
    """Block-sparse attention with index keys of the model's dtype; the first layers are dense."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    check_query_heads(query_heads(view), serving.tp)
    heads = heads_per_rank(kv_heads(view, context.rule), serving.tp, where="models/minimax_m3")
    size = head_size(view, context.rule)
    sparse = dict(view.mapping("sparse_attention_config"))
    dim = sparse.get("sparse_index_dim", 128)
    flags = sparse.get("sparse_attention_freq")
    build = PlanBuilder(context)
    for i in range(layers):
        on = bool(flags[i]) if isinstance(flags, list) and i < len(flags) else i >= 3
        if on:
            build.add(
                LayerSpec(kind=MLA, block_size=1, head_size=int(dim), dtype=context.model_dtype, role="INDEXER"), i
            )
        spec = attention_spec(context, heads=heads, size=size)
        build.add(replace(spec, variant="sparse") if on else spec, i)
    return Plan(layers=tuple(build.layers), positions=tuple(build.positions), decoder_layers=layers, kernel_block=128)


def _has_indexer(view: ConfigView, layer: int) -> bool:
    """Return whether the layer selects tokens itself (models/deepseek_v32/attention.py:167-190)."""
    kinds = view.strings("indexer_types") if view.written("indexer_types") is not None else None
    if kinds is not None and layer < len(kinds):
        return kinds[layer] != "shared"
    pattern = view.get("index_topk_pattern")
    if isinstance(pattern, str):
        return not (layer < len(pattern) and pattern[layer] == "S")
    frequency = view.integer("index_topk_freq", default=1)
    offset = view.integer("index_skip_topk_offset", minimum=0, default=2)
    return max(layer - offset + 1, 0) % frequency == 0


def _latent_as_heads(context: Context) -> Plan:
    """A DeepSeek configuration without kv_lora_rank: ordinary heads of qk_nope + qk_rope (deepseek_v2.py:577)."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    heads = query_heads(view)
    check_query_heads(heads, serving.tp)
    size = head_size(view, context.rule)
    per_rank = heads_per_rank(kv_heads(view, context.rule), serving.tp)
    build = PlanBuilder(context)
    for i in range(layers):
        build.attention(i, heads=per_rank, size=size)
    return Plan(layers=tuple(build.layers), positions=tuple(build.positions), decoder_layers=layers)
