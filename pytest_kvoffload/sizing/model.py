"""What one model keeps in vLLM's KV cache: the same numbers that the server computes for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_kvoffload.catalog.architectures import (
    Rule,
    find_rule,
    find_text_rule,
    known_architectures,
    load_catalog,
)
from pytest_kvoffload.errors import SizingError, UsageError, did_you_mean
from pytest_kvoffload.sizing import attention_models as attention
from pytest_kvoffload.sizing import latent_models as latents
from pytest_kvoffload.sizing.compressed_models import deepseek_v4
from pytest_kvoffload.sizing.grouping import bytes_per_block, group_layers, settle
from pytest_kvoffload.sizing.hybrid_models import HYBRIDS
from pytest_kvoffload.sizing.plan import Context, Plan, model_dtype, resolve_cache_dtype
from pytest_kvoffload.sizing.result import ModelKV
from pytest_kvoffload.sizing.serving import Serving
from pytest_kvoffload.sizing.spec import MLA, WINDOW_MLA, Group
from pytest_kvoffload.sizing.view import ConfigView

DERIVATIONS: Mapping[str, Callable[[Context], Plan]] = {
    "attention": attention.standard,
    "gemma3n": attention.gemma3n,
    "gemma4": attention.gemma4,
    "llama4": attention.llama4,
    "mimo_v2": attention.mimo_v2,
    "step3p5": attention.step3p5,
    "deci": attention.deci,
    "mla": latents.latent,
    "mla_sparse": latents.latent_sparse,
    "whisper": attention.whisper,
    "minimax_m3": latents.minimax_m3,
    "deepseek_v4": deepseek_v4,
    **HYBRIDS,
}

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)


def model_kv(
    config: Mapping[str, Any],
    *,
    serving: Serving | None = None,
    tp: int | None = None,
    kv_cache_dtype: str | None = None,
    max_model_len: int | None = None,
    source: str = "config.json",
    assume_standard: bool = False,
) -> ModelKV:
    """Compute a model's cache from its ``config.json``.

    Args:
        config: the whole configuration.
        serving: the server's settings; the defaults are those of ``vllm serve`` on an 80 GB NVIDIA GPU.
        tp: shorthand for ``serving`` with another tensor parallel size.
        kv_cache_dtype: shorthand for ``serving`` with another KV cache dtype.
        max_model_len: as ``--max-model-len``; ``None`` takes the configuration's.
        source: the configuration's name for messages.
        assume_standard: for an unknown architecture, use ``2 x layers x kv_heads x head_dim x bytes`` and say so.

    Raises:
        SizingError: a key is missing or makes no sense, the architecture is unknown, or vLLM refuses the combination.
        UsageError: a setting makes no sense.
    """
    settings = serving or Serving()
    if tp is not None:
        settings = replace(settings, tp=tp)
    if kv_cache_dtype is not None:
        settings = replace(settings, kv_cache_dtype=kv_cache_dtype)
    view = ConfigView(config, source)
    architecture, rule, notes = _rule(view, settings, assume_standard=assume_standard)
    context = Context(
        view=view,
        rule=rule,
        serving=settings,
        model_dtype=model_dtype(view, settings),
        cache_dtype=resolve_cache_dtype(view, settings),
    )
    derive = DERIVATIONS.get(rule.build)
    if derive is None:
        raise SizingError(f"{source}: {architecture} is listed without a derivation ({rule.build})")
    plan = derive(context)
    if settings.kv_cache_dtype == "auto" and context.cache_dtype != "auto":
        notes = (*notes, f"the checkpoint's quantisation sets the KV cache to {context.cache_dtype}")
    return _realise(plan, context, architecture, max_model_len, notes)


def explicit_kv(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    dtype: str = "bfloat16",
    serving: Serving | None = None,
    max_model_len: int | None = None,
) -> ModelKV:
    """Compute the cache of ordinary attention from numbers: ``2 x layers x kv_heads x head_dim x dtype_bytes``.

    Raises:
        UsageError: a number is less than 1.
        SizingError: the heads do not divide over the ranks, or the dtype is unknown.
    """
    for name, value in (("layers", layers), ("kv-heads", kv_heads), ("head-dim", head_dim)):
        if value < 1:
            raise UsageError(f"--{name}: got {value}; expected 1 or more")
    settings = serving or Serving()
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        # As many query heads as divide over the ranks: only the KV heads matter here.
        "num_attention_heads": kv_heads * settings.tp,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": kv_heads * settings.tp * head_dim,
        "torch_dtype": dtype,
        "max_position_embeddings": max_model_len or 131072,
    }
    result = model_kv(config, serving=settings, source="explicit numbers")
    return replace(
        result, architecture="explicit numbers", rule_source="2 x layers x kv_heads x head_dim x dtype_bytes"
    )


def _rule(view: ConfigView, serving: Serving, *, assume_standard: bool) -> tuple[str, Rule, tuple[str, ...]]:
    catalog = load_catalog()
    version = serving.vllm_version
    names = view.architectures
    for name in names:
        if name in catalog.no_cache:
            raise SizingError(
                f"{view.source}: {name} is an encoder: it keeps no KV cache, so there is nothing to offload"
            )
        rule = find_rule(name, version)
        if rule is not None:
            return name, rule, ()
        if name in catalog.wrapper or _is_nested(view):
            inner = view.text.get("architectures") if view.text is not view.raw else None
            if isinstance(inner, list):
                for candidate in inner:
                    found = find_rule(str(candidate), version)
                    if found is not None:
                        return name, found, ()
            for kind in (view.text_model_type, view.model_type):
                found = find_text_rule(kind, version)
                if found is not None and (name in catalog.wrapper or assume_standard):
                    return name, found, ()
    if not names:
        rule = find_text_rule(view.text_model_type, version)
        if rule is not None:
            return view.model_type, rule, ("the configuration names no architecture; its model_type was used",)
    if assume_standard:
        label = names[0] if names else view.model_type or "unknown"
        note = (
            f"{label} is not in the catalog: assumed ordinary attention in every layer "
            "(2 x layers x kv_heads x head_dim x bytes); vLLM may keep something else"
        )
        return label, Rule(build="attention", source="assumed", window="layer_types"), (note,)
    raise SizingError(_unknown(view, names))


def _is_nested(view: ConfigView) -> bool:
    return view.text is not view.raw


def _unknown(view: ConfigView, names: tuple[str, ...]) -> str:
    catalog = load_catalog()
    if not names:
        return (
            f"{view.source}: architectures: missing, and model_type {view.model_type!r} is unknown "
            "too; sizing needs one of "
            "them (or explicit numbers: --layers, --kv-heads, --head-dim)"
        )
    name = names[0]
    if name in catalog.removed:
        return (
            f"{view.source}: architectures: vLLM removed {name} after {catalog.removed[name]}; "
            "--assume-standard sizes it as ordinary attention"
        )
    if name in catalog.plugin:
        return (
            f"{view.source}: architectures: {name} is in vLLM only through the plugin "
            f"{catalog.plugin[name]}, whose cache is "
            "not in the catalog; --assume-standard sizes it as ordinary attention"
        )
    inner = f" with text model {view.text_model_type!r}" if name in catalog.wrapper else ""
    return (
        f"{view.source}: architectures: {name}{inner} is "
        f"unknown{did_you_mean(name, known_architectures(), cutoff=0.8)}; its "
        "cache is not guessed. --assume-standard sizes it as ordinary attention in every layer, or "
        "give explicit numbers "
        "(--layers, --kv-heads, --head-dim)"
    )


def _realise(
    plan: Plan, context: Context, architecture: str, max_model_len: int | None, notes: tuple[str, ...]
) -> ModelKV:
    serving = context.serving
    length = max_model_len if max_model_len is not None else _max_model_len(context)
    if length < 1:
        raise UsageError(f"max_model_len: got {length}; expected 1 or more")
    stateful = plan.hybrid or plan.attention_free
    # Hybrids cache prefixes by default after 0.27; models of states only, and encoder-decoders, never do by default.
    default = stateful and not plan.attention_free and serving.at_least("0.28")
    align = bool(stateful and (default if serving.prefix_caching is None else serving.prefix_caching))
    if stateful and "0.27.1" < serving.vllm_version < "0.32" and serving.prefix_caching is None and plan.hybrid:
        notes = (
            *notes,
            f"state blocks of hybrids were read in vLLM 0.27.1 and 0.32.0; {serving.vllm_version} is taken as 0.32.0",
        )
    block, layers = settle(plan, serving, align=align, max_model_len=length)
    groups = group_layers(layers, hybrid_manager=serving.hybrid_manager, packed=plan.packed)
    stages = _stages(plan.decoder_layers, serving.pp)
    per_stage = tuple(
        bytes_per_block(groups, frozenset(i for i, position in enumerate(plan.positions) if position in stage))
        for stage in stages
    )
    padding = sum(len(_largest(groups).specs) - len(group.specs) for group in groups)
    if padding and len(groups) > 1:
        slots = len(layers) + padding
        notes = (*notes, f"group padding: {slots} layer slots for {len(layers)} layers")
    latent_only = bool(layers) and all(spec.kind in (MLA, WINDOW_MLA) for spec in layers)
    return ModelKV(
        architecture=architecture,
        source=context.view.source,
        rule_source=context.rule.source,
        serving=serving,
        model_dtype=context.model_dtype,
        cache_dtype=context.cache_dtype,
        block_size=block,
        max_model_len=length,
        layers=layers,
        groups=groups,
        padded_bytes_per_block=max(per_stage),
        rank_bytes_per_block=per_stage,
        align=align,
        latent_only=latent_only,
        notes=(*notes, *plan.notes),
    )


def _largest(groups: tuple[Group, ...]) -> Group:
    return max(groups, key=lambda group: len(group.specs))


def _stages(layers: int, pp: int) -> tuple[range, ...]:
    """Cut decoder layers into pipeline stages as vLLM does (distributed/utils.py get_pp_indices)."""
    if pp > layers:
        raise SizingError(f"vLLM refuses this: {layers} layers cannot be cut into {pp} pipeline stages")
    sizes = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        sizes[-i] += 1
    stages, start = [], 0
    for size in sizes:
        stages.append(range(start, start + size))
        start += size
    return tuple(stages)


def _max_model_len(context: Context) -> int:
    view = context.view
    if view.text_model_type == "whisper":
        return view.integer("max_target_positions", default=448)
    # Step-3's classes have a max_seq_len of their own, and vLLM takes the smallest length that it finds.
    own = ("max_seq_len",) if view.text_model_type in {"step3_text", "step3p5"} else ()
    keys = [key for key in LENGTH_KEYS if isinstance(view.get(key) if key in own else view.written(key), int)]
    found = [view.integer(key) for key in keys]
    if view.written("model_max_length") is not None and isinstance(view.written("model_max_length"), int):
        return view.integer("model_max_length")
    if found:
        return min(found)
    inherited = [view.integer(key) for key in LENGTH_KEYS if isinstance(view.get(key), int)]
    return min(inherited) if inherited else 2048
