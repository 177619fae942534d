"""Derivations of models that have attention only: ordinary, varied by layer, and with cross attention."""

from __future__ import annotations

from dataclasses import replace

from pytest_kvoffload.errors import SizingError
from pytest_kvoffload.sizing.cache_dtype import FP8, TURBOQUANT
from pytest_kvoffload.sizing.heads import check_query_heads, head_size, heads_per_rank, kv_heads, query_heads
from pytest_kvoffload.sizing.plan import Context, Plan, PlanBuilder, attention_spec
from pytest_kvoffload.sizing.spec import CROSS
from pytest_kvoffload.sizing.view import MAX_LAYERS
from pytest_kvoffload.sizing.windows import configured_window, layer_types, layer_windows

TURBOQUANT_BOUNDARY = 2
"""Layers at each end that keep the model's dtype (quantization/turboquant/config.py get_boundary_skip_layers)."""


def layer_count(context: Context) -> int:
    """Return the number of decoder layers."""
    key = str(context.rule.options.get("layers", "num_hidden_layers"))
    keys = (key, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    return context.view.first_integer(keys, maximum=MAX_LAYERS)


def standard(context: Context) -> Plan:
    """Ordinary attention in every layer, with the rule's windows."""
    view, rule, serving = context.view, context.rule, context.serving
    layers = layer_count(context)
    check_query_heads(query_heads(view), serving.tp)
    replicate = not rule.options.get("no_replication", False)
    total = kv_heads(view, rule)
    heads = (
        total
        if rule.kv_heads == "one"
        else heads_per_rank(total, serving.tp, where=rule.source.split(" ")[0], replicate=replicate)
    )
    size = head_size(view, rule)
    windows = layer_windows(view, rule, layers)
    build = PlanBuilder(context)
    skip = _boundary(context, layers)
    if skip and any(windows):
        raise SizingError(f"--kv-cache-dtype {context.cache_dtype} together with sliding windows is not in the catalog")
    for i, window in enumerate(windows):
        build.attention(i, heads=heads, size=size, window=window, plain=i in skip)
    notes = []
    if rule.ignores_cache_dtype and context.cache_dtype != "auto":
        notes.append(f"--kv-cache-dtype {context.cache_dtype} has no effect on this architecture ({rule.source})")
    return Plan(
        layers=tuple(build.layers),
        positions=tuple(build.positions),
        decoder_layers=layers,
        skipped_dtype=bool(skip),
        notes=tuple(notes),
    )


def gemma3n(context: Context) -> Plan:
    """The last ``num_kv_shared_layers`` layers read the cache of earlier ones and keep none."""
    plan = standard(context)
    shared = context.view.integer("num_kv_shared_layers", minimum=0, default=0)
    keep = plan.decoder_layers - shared if 0 < shared < plan.decoder_layers else plan.decoder_layers
    return replace(plan, layers=plan.layers[:keep], positions=plan.positions[:keep])


def gemma4(context: Context) -> Plan:
    """Sliding and global layers differ in heads and head size; the last layers may share."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    check_query_heads(query_heads(view), serving.tp)
    types = layer_types(view, layers)
    assert types is not None  # the class always has a pattern
    shared = view.integer("num_kv_shared_layers", minimum=0, default=0)
    keep = layers - shared if shared < layers else layers
    window = configured_window(view)
    size = view.integer("head_dim", default=256)
    global_size = view.integer("global_head_dim", default=size)
    total = kv_heads(view, context.rule)
    global_total = total
    if view.flag("attention_k_eq_v") and view.has("num_global_key_value_heads"):
        global_total = view.integer("num_global_key_value_heads")
    where = "models/gemma4.py"
    build = PlanBuilder(context)
    for i, kind in enumerate(types[:keep]):
        if kind == "sliding_attention":
            build.attention(i, heads=heads_per_rank(total, serving.tp, where=where), size=size, window=window)
        else:
            build.attention(i, heads=heads_per_rank(global_total, serving.tp, where=where), size=global_size)
    return Plan(layers=tuple(build.layers), positions=tuple(build.positions), decoder_layers=layers)


def llama4(context: Context) -> Plan:
    """Layers with rotary positions attend within chunks; every fourth (no positions) attends to all."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    check_query_heads(query_heads(view), serving.tp)
    heads = heads_per_rank(kv_heads(view, context.rule), serving.tp, where="models/llama4.py")
    size = head_size(view, context.rule)
    chunk = view.optional_integer("attention_chunk_size") or None
    no_rope = view.integers("no_rope_layers")
    interval = view.integer("no_rope_layer_interval", default=4)
    build = PlanBuilder(context)
    for i in range(layers):
        rope = bool(no_rope[i]) if no_rope and i < len(no_rope) else bool((i + 1) % interval)
        build.attention(i, heads=heads, size=size, chunk=chunk if rope else None)
    return Plan(layers=tuple(build.layers), positions=tuple(build.positions), decoder_layers=layers)


def mimo_v2(context: Context) -> Plan:
    """Sliding and global layers differ in heads; K and V differ in head size."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    check_query_heads(query_heads(view), serving.tp)
    pattern = view.integers("hybrid_layer_pattern")
    if pattern is None or len(pattern) < layers:
        raise view.bad("hybrid_layer_pattern", f"expected {layers} entries of 0 (global) or 1 (sliding)")
    window = view.first_integer(("sliding_window_size", "sliding_window"))
    size = view.integer("head_dim")
    size_v = view.integer("v_head_dim", default=size)
    swa_size = view.integer("swa_head_dim", default=size)
    swa_size_v = view.integer("swa_v_head_dim", default=swa_size)
    where = "models/mimo_v2.py"
    heads = heads_per_rank(kv_heads(view, context.rule), serving.tp, where=where)
    swa_heads = heads_per_rank(view.integer("swa_num_key_value_heads"), serving.tp, where=where)
    # 0.27.1 leaves these layers at the model's dtype (kv-cache dtype is not passed to the split-head backend).
    plain = context.cache_dtype in FP8 and not serving.at_least("0.28")
    build = PlanBuilder(context)
    for i in range(layers):
        if pattern[i] == 1:
            build.attention(i, heads=swa_heads, size=swa_size, size_v=swa_size_v, window=window, plain=plain)
        else:
            build.attention(i, heads=heads, size=size, size_v=size_v, plain=plain)
    return Plan(layers=tuple(build.layers), positions=tuple(build.positions), decoder_layers=layers)


def step3p5(context: Context) -> Plan:
    """Sliding layers may have heads of their own (``attention_other_setting``)."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    check_query_heads(query_heads(view), serving.tp)
    types = view.strings("layer_types")
    other = view.mapping("attention_other_setting")
    window = view.optional_integer("sliding_window") or None
    total = view.integer("num_attention_groups")
    size = head_size(view, context.rule)
    build = PlanBuilder(context)
    for i in range(layers):
        slides = types[i] == "sliding_attention" if types and i < len(types) else i % 2 == 0
        groups, here = total, size
        if other and types and i < len(types) and types[i] == other.get("attention_type"):
            groups = int(other.get("num_attention_groups", total))
            here = int(other.get("head_dim", size))
        heads = heads_per_rank(groups, serving.tp, where="models/step3p5.py")
        build.attention(i, heads=heads, size=here, window=window if slides else None)
    return Plan(layers=tuple(build.layers), positions=tuple(build.positions), decoder_layers=layers)


def deci(context: Context) -> Plan:
    """``block_configs`` says per layer whether there is attention and how many query heads share a KV head."""
    view, serving = context.view, context.serving
    blocks = view.get("block_configs")
    if not isinstance(blocks, list) or not blocks:
        raise view.bad("block_configs", "missing; sizing this architecture needs it")
    heads = query_heads(view)
    check_query_heads(heads, serving.tp)
    size = head_size(view, context.rule)
    build = PlanBuilder(context)
    for i, block in enumerate(blocks):
        part = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(part, dict):
            raise view.bad(f"block_configs[{i}].attention", "missing")
        if part.get("no_op") or part.get("replace_with_linear"):
            continue
        shared = part.get("n_heads_in_group")
        if not isinstance(shared, int) or shared < 1:
            raise view.bad(f"block_configs[{i}].attention.n_heads_in_group", f"got {shared!r}; expected a whole number")
        build.attention(i, heads=heads_per_rank(heads // shared, serving.tp, where="models/nemotron_nas.py"), size=size)
    return Plan(layers=tuple(build.layers), positions=tuple(build.positions), decoder_layers=len(blocks))


def whisper(context: Context) -> Plan:
    """Self attention and cross attention in every decoder layer."""
    view, serving = context.view, context.serving
    layers = view.first_integer(("decoder_layers", "num_hidden_layers"), maximum=MAX_LAYERS)
    heads = view.integer("decoder_attention_heads", maximum=100_000)
    check_query_heads(heads, serving.tp)
    size = view.first_integer(("d_model", "hidden_size")) // heads
    per_rank = heads // serving.tp
    spec = attention_spec(context, heads=per_rank, size=size)
    cross = replace(spec, kind=CROSS)
    build = PlanBuilder(context)
    for i in range(layers):
        build.add(spec, i)
        build.add(cross, i)
    return Plan(
        layers=tuple(build.layers), positions=tuple(build.positions), decoder_layers=layers, encoder_decoder=True
    )


def _boundary(context: Context, layers: int) -> frozenset[int]:
    if context.cache_dtype not in TURBOQUANT or context.rule.ignores_cache_dtype:
        return frozenset()
    ends = min(TURBOQUANT_BOUNDARY, layers // 2)
    return frozenset((*range(ends), *range(layers - ends, layers)))
