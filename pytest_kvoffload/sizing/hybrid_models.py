"""Derivations of models that keep a state per sequence: Mamba, gated delta nets, short convolutions, and hybrids.

State shapes: ``model_executor/layers/mamba/mamba_utils.py`` (0.32.0:160-310).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_kvoffload.sizing.attention_models import layer_count
from pytest_kvoffload.sizing.heads import check_query_heads, divide, head_size, heads_per_rank, kv_heads, query_heads
from pytest_kvoffload.sizing.latent_models import latent_block, latent_spec
from pytest_kvoffload.sizing.plan import Context, Plan, PlanBuilder
from pytest_kvoffload.sizing.spec import STATE, LayerSpec
from pytest_kvoffload.sizing.states import mamba1_state, mamba2_state, ssm_dtype
from pytest_kvoffload.sizing.view import MAX_LAYERS
from pytest_kvoffload.sizing.windows import layer_types

ATTENTION_NAMES = frozenset({"attention", "full_attention", "hybrid"})


def mamba1(context: Context) -> Plan:
    """States only (Mamba 1)."""
    view = context.view
    layers = layer_count(context)
    hidden = view.first_integer(("hidden_size", "d_model"))
    inner = view.integer("intermediate_size", default=hidden * 2)
    state = mamba1_state(context, inner=inner, state=view.integer("state_size"), kernel=view.integer("conv_kernel"))
    return Plan(layers=(state,) * layers, positions=tuple(range(layers)), decoder_layers=layers, attention_free=True)


def mamba2(context: Context) -> Plan:
    """States only (Mamba 2)."""
    view = context.view
    layers = layer_count(context)
    state = mamba2_state(
        context,
        inner=int(view.number("expand", default=2) * view.first_integer(("hidden_size", "d_model"))),
        groups=view.integer("n_groups"),
        heads=view.integer("num_heads"),
        dim=view.integer("head_dim"),
        state=view.integer("state_size"),
        kernel=view.integer("conv_kernel"),
    )
    return Plan(layers=(state,) * layers, positions=tuple(range(layers)), decoder_layers=layers, attention_free=True)


def jamba(context: Context) -> Plan:
    """Attention in every ``attn_layer_period``-th layer, Mamba 1 in the others."""
    view = context.view
    layers = layer_count(context)
    period, offset = view.integer("attn_layer_period"), view.integer("attn_layer_offset", minimum=0)
    state = mamba1_state(
        context,
        inner=int(view.number("mamba_expand", default=2) * view.integer("hidden_size")),
        state=view.integer("mamba_d_state"),
        kernel=view.integer("mamba_d_conv"),
    )
    heads, _ = _attention(context)
    size = view.integer("hidden_size") // query_heads(view)
    kinds = ["attention" if i % period == offset else "state" for i in range(layers)]
    return _interleave(context, kinds, heads=heads, size=size, state=state)


def falcon_h1(context: Context) -> Plan:
    """Attention and Mamba 2 side by side in every layer."""
    view = context.view
    layers = layer_count(context)
    inner = view.optional_integer("mamba_d_ssm")
    state = mamba2_state(
        context,
        inner=inner or int(view.number("mamba_expand", default=2) * view.integer("hidden_size")),
        groups=view.integer("mamba_n_groups"),
        heads=view.integer("mamba_n_heads"),
        dim=view.integer("mamba_d_head"),
        state=view.integer("mamba_d_state"),
        kernel=view.integer("mamba_d_conv"),
    )
    heads, size = _attention(context)
    return _interleave(context, ["both"] * layers, heads=heads, size=size, state=state)


def granite_hybrid(context: Context) -> Plan:
    """Mamba 2 with attention where ``layer_types`` says so; attention only is an ordinary model."""
    view = context.view
    layers = layer_count(context)
    types = view.strings("layer_types") or view.strings("layers_block_type")
    if types is None or len(types) < layers:
        raise view.bad("layer_types", f"expected {layers} entries (mamba, attention)")
    heads, _ = _attention(context)
    size = view.integer("hidden_size") // query_heads(view)
    kinds = ["attention" if kind in ATTENTION_NAMES else "state" for kind in types[:layers]]
    if "state" not in kinds:
        return _interleave(context, kinds, heads=heads, size=size, state=None)
    state = mamba2_state(
        context,
        inner=int(view.number("mamba_expand", default=2) * view.integer("hidden_size")),
        groups=view.integer("mamba_n_groups"),
        heads=view.integer("mamba_n_heads"),
        dim=_granite_head(context),
        state=view.integer("mamba_d_state"),
        kernel=view.integer("mamba_d_conv"),
    )
    return _interleave(context, kinds, heads=heads, size=size, state=state)


def nemotron_h(context: Context) -> Plan:
    """A letter per layer: M is Mamba 2, * attention, - and E have no cache."""
    view = context.view
    kinds = _nemotron_kinds(context)
    heads, size = _attention(context)
    state = mamba2_state(
        context,
        inner=view.integer("mamba_num_heads") * view.integer("mamba_head_dim"),
        groups=view.integer("n_groups"),
        heads=view.integer("mamba_num_heads"),
        dim=view.integer("mamba_head_dim"),
        state=view.integer("ssm_state_size"),
        kernel=view.integer("conv_kernel"),
        configured=str(view.written("mamba_ssm_cache_dtype") or "float32"),
    )
    window = view.optional_integer("sliding_window") or None
    return _interleave(context, kinds, heads=heads, size=size, state=state, window=window)


def zamba2(context: Context) -> Plan:
    """Mamba 2 in every layer; the hybrid layers have a shared attention block on top, with a cache of its own."""
    view = context.view
    types = view.strings("layers_block_type") or view.strings("layer_types")
    if types is None:
        types = ("m", *(*("m",) * 5, "hybrid") * 7, *("m",) * 4, "hybrid", *("m",) * 3, "hybrid", *("m",) * 2)
    hidden = view.integer("hidden_size")
    heads = query_heads(view)
    check_query_heads(heads, context.serving.tp)
    size = view.written("attention_head_dim") or 2 * hidden // heads
    inner = int(view.number("mamba_expand", default=2) * hidden)
    mamba_heads = view.integer("n_mamba_heads")
    state = mamba2_state(
        context,
        inner=inner,
        groups=view.integer("mamba_ngroups"),
        heads=mamba_heads,
        dim=inner // mamba_heads,
        state=view.integer("mamba_d_state"),
        kernel=view.integer("mamba_d_conv"),
    )
    kinds = ["both" if kind == "hybrid" else "state" for kind in types]
    return _interleave(context, kinds, heads=heads // context.serving.tp, size=int(size), state=state)


def lfm2(context: Context) -> Plan:
    """Short convolutions with attention in between."""
    view = context.view
    layers = layer_count(context)
    types = view.strings("layer_types") if view.written("layer_types") is not None else None
    full = view.integers("full_attn_idxs")
    if types is None:
        types = tuple("full_attention" if full is None or i in full else "conv" for i in range(layers))
    if len(types) < layers:
        raise view.bad("layer_types", f"{len(types)} entries for num_hidden_layers {layers}")
    heads, _ = _attention(context)
    width = view.integer("conv_dim", default=view.integer("hidden_size"))
    shape = (view.integer("conv_L_cache") - 1, divide(width, context.serving.tp, "conv_dim"))
    state = LayerSpec(
        kind=STATE, block_size=1, state_shapes=(shape,), state_dtypes=(context.model_dtype,), state_type="SHORT_CONV"
    )
    size = view.integer("hidden_size") // query_heads(view)
    kinds = ["attention" if kind == "full_attention" else "state" for kind in types[:layers]]
    return _interleave(context, kinds, heads=heads, size=size, state=state)


def gated_delta(context: Context) -> Plan:
    """Gated delta nets with full attention in between (Qwen3-Next, Qwen3.5, OLMo hybrid)."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    types = layer_types(view, layers)
    if types is None:
        raise view.bad("layer_types", "missing; sizing this architecture needs it")
    heads, size = _attention(context)
    k_heads, v_heads = view.integer("linear_num_key_heads"), view.integer("linear_num_value_heads")
    k_dim, v_dim = view.integer("linear_key_head_dim"), view.integer("linear_value_head_dim")
    kernel = view.integer("linear_conv_kernel_dim")
    key = context.rule.options.get("ssm_dtype_key")
    configured = view.written(str(key)) if key else None
    ssm = ssm_dtype(context, str(configured) if configured else "auto")
    conv = (kernel - 1, divide(2 * k_dim * k_heads + v_dim * v_heads, serving.tp, "convolution width"))
    state = LayerSpec(
        kind=STATE,
        block_size=1,
        state_shapes=(conv, (divide(v_heads, serving.tp, "linear_num_value_heads"), v_dim, k_dim)),
        state_dtypes=(context.model_dtype, ssm),
        state_type="GDN_ATTN",
    )
    kinds = ["attention" if kind == "full_attention" else "state" for kind in types]
    return _interleave(context, kinds, heads=heads, size=size, state=state)


def kimi_linear(context: Context) -> Plan:
    """Kimi delta attention with latent attention in between."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    check_query_heads(query_heads(view), serving.tp)
    nested = view.mapping("linear_attn_config")
    linear = _integer_list(nested, "kda_layers", context)
    heads, dim, kernel = (_nested(nested, key, context) for key in ("num_heads", "head_dim", "short_conv_kernel_size"))
    ssm = context.serving.mamba_ssm_cache_dtype
    state = LayerSpec(
        kind=STATE,
        block_size=1,
        state_shapes=(
            (kernel - 1, divide(3 * heads * dim, serving.tp, "convolution width")),
            (divide(heads, serving.tp, "linear_attn_config.num_heads"), dim, dim),
        ),
        state_dtypes=(context.model_dtype, "float32" if ssm == "auto" else ssm),
        state_type="GDN_ATTN",
    )
    latent = latent_spec(context, sparse=False)
    build = PlanBuilder(context)
    for i in range(layers):
        build.add(state if i + 1 in linear else latent, i)
    return Plan(
        layers=tuple(build.layers),
        positions=tuple(build.positions),
        decoder_layers=layers,
        kernel_block=latent_block(context),
        hybrid=True,
        latent=True,
    )


def bailing_linear(context: Context) -> Plan:
    """Linear attention with latent attention at the end of each group of layers."""
    view, serving = context.view, context.serving
    layers = layer_count(context)
    heads = query_heads(view)
    check_query_heads(heads, serving.tp)
    dim = view.written("head_dim") or view.integer("hidden_size") // heads
    group = view.integer("layer_group_size", default=1)
    state = LayerSpec(
        kind=STATE,
        block_size=1,
        state_shapes=((divide(heads, serving.tp, "num_attention_heads"), int(dim), int(dim)),),
        state_dtypes=(context.model_dtype,),
        state_type="LINEAR",
    )
    latent = latent_spec(context, sparse=False)
    build = PlanBuilder(context)
    for i in range(layers):
        build.add(state if (i + 1) % group else latent, i)
    return Plan(
        layers=tuple(build.layers),
        positions=tuple(build.positions),
        decoder_layers=layers,
        kernel_block=latent_block(context),
        hybrid=True,
        latent=True,
    )


def _interleave(
    context: Context,
    kinds: Sequence[str],
    *,
    heads: int,
    size: int,
    state: LayerSpec | None,
    window: int | None = None,
) -> Plan:
    build = PlanBuilder(context)
    for i, kind in enumerate(kinds):
        if kind in ("attention", "both"):
            build.attention(i, heads=heads, size=size, window=window)
        if kind in ("state", "both"):
            assert state is not None
            build.add(state, i)
    has_state = any(kind in ("state", "both") for kind in kinds)
    has_attention = any(kind in ("attention", "both") for kind in kinds)
    return Plan(
        layers=tuple(build.layers),
        positions=tuple(build.positions),
        decoder_layers=len(kinds),
        hybrid=has_state,
        attention_free=not has_attention,
    )


def _attention(context: Context) -> tuple[int, int]:
    heads = query_heads(context.view)
    check_query_heads(heads, context.serving.tp)
    total = kv_heads(context.view, context.rule)
    return heads_per_rank(total, context.serving.tp, where=context.rule.source.split(" ")[0]), head_size(
        context.view, context.rule
    )


def _granite_head(context: Context) -> int:
    view = context.view
    value = view.get("mamba_d_head")
    if isinstance(value, int):
        return value
    return int(view.number("mamba_expand", default=2) * view.integer("hidden_size")) // view.integer("mamba_n_heads")


def _nemotron_kinds(context: Context) -> list[str]:
    view = context.view
    pattern = view.written("hybrid_override_pattern")
    types = view.strings("layers_block_type") if view.written("layers_block_type") is not None else None
    if types is not None:
        names = {"linear_attention": "state", "mamba": "state", "full_attention": "attention", "attention": "attention"}
        return [names.get(kind, "none") for kind in types[:MAX_LAYERS]]
    if not isinstance(pattern, str) or not pattern:
        raise view.bad("hybrid_override_pattern", "missing; sizing this architecture needs it or layers_block_type")
    letters: Mapping[str, str] = {"M": "state", "*": "attention", "-": "none", "E": "none"}
    unknown = sorted(set(pattern) - set(letters))
    if unknown:
        raise view.bad("hybrid_override_pattern", f"unknown letters {unknown}; known: M * - E")
    return [letters[letter] for letter in pattern[:MAX_LAYERS]]


def _nested(values: Mapping[str, object], key: str, context: Context) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise context.view.bad(f"linear_attn_config.{key}", f"got {value!r}; expected a whole number of 1 or more")
    return value


def _integer_list(values: Mapping[str, object], key: str, context: Context) -> frozenset[int]:
    value = values.get(key)
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise context.view.bad(f"linear_attn_config.{key}", "missing or not a list of layer numbers")
    return frozenset(value)


HYBRIDS: Mapping[str, Callable[[Context], Plan]] = {
    "mamba1": mamba1,
    "mamba2": mamba2,
    "jamba": jamba,
    "falcon_h1": falcon_h1,
    "granite_hybrid": granite_hybrid,
    "nemotron_h": nemotron_h,
    "zamba2": zamba2,
    "lfm2": lfm2,
    "gdn": gated_delta,
    "kimi_linear": kimi_linear,
    "bailing_linear": bailing_linear,
}
"""Derivations by the name that a rule gives."""
