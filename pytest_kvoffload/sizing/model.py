"""What one model keeps in vLLM's KV cache: the same numbers that the server computes for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
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
from pytest_kvoffload.sizing.compressed_models import deepseek_v4
from pytest_kvoffload.sizing.grouping import bytes_per_block, group_layers, settle
from pytest_kvoffload.sizing.hybrid_models import HYBRIDS
from pytest_kvoffload.sizing.plan import Context, Plan, model_dtype, resolve_cache_dtype
from pytest_kvoffload.sizing.serving import Serving
from pytest_kvoffload.sizing.spec import CHUNK, FULL, MLA, STATE, UNIFORM, WINDOW, WINDOW_MLA, Group, LayerSpec
from pytest_kvoffload.sizing.view import ConfigView

SCHEMA_VERSION = 1
LENGTHS = (1, 1024, 8192, 32768, 131072)
"""Lengths at which the bytes of one request are listed, up to the model's own."""

DERIVATIONS: Mapping[str, Callable[[Context], Plan]] = {
    "attention": attention.standard,
    "gemma3n": attention.gemma3n,
    "gemma4": attention.gemma4,
    "llama4": attention.llama4,
    "mimo_v2": attention.mimo_v2,
    "step3p5": attention.step3p5,
    "deci": attention.deci,
    "mla": attention.latent,
    "mla_sparse": attention.latent_sparse,
    "whisper": attention.whisper,
    "minimax_m3": attention.minimax_m3,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKV:
    """The cache of one model on one server setting. Bytes are per rank, lengths tokens.

    ``layers`` are in vLLM's order; ``groups`` share block tables and draw from one pool, so that each block id costs
    ``padded_bytes_per_block`` whichever group takes it.
    """

    architecture: str
    source: str
    rule_source: str
    serving: Serving
    model_dtype: str
    cache_dtype: str
    block_size: int
    max_model_len: int
    layers: tuple[LayerSpec, ...]
    groups: tuple[Group, ...]
    padded_bytes_per_block: int
    rank_bytes_per_block: tuple[int, ...]
    """Bytes of one block id on each pipeline stage."""
    align: bool
    latent_only: bool
    """Only latents: every tensor-parallel rank holds the same bytes."""
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of one replica."""
        return self.serving.tp * self.serving.pp

    @property
    def kv_bytes_per_token(self) -> int | float:
        """Bytes that each token adds in layers that keep every token, without padding of pages."""
        return _per_token(spec for spec in self.layers if spec.kind in (FULL, MLA))

    @property
    def window_bytes_per_token(self) -> int | float:
        """Bytes that each token adds, while it is within reach, in window and chunk layers."""
        return _per_token(spec for spec in self.layers if spec.kind in (WINDOW, WINDOW_MLA, CHUNK))

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes of one state of one sequence over all state layers, without padding."""
        return sum(spec.unpadded_page_bytes for spec in self.layers if spec.kind == STATE)

    @property
    def state_bytes_per_sequence_padded(self) -> int:
        """Bytes of one state of one sequence as allocated."""
        return sum(spec.page_bytes for spec in self.layers if spec.kind == STATE)

    def blocks_for_one_request(self, tokens: int) -> int:
        """Return the block ids that one request of ``tokens`` tokens takes at most, over all groups.

        Raises:
            UsageError: ``tokens`` is less than 1.
        """
        if tokens < 1:
            raise UsageError(f"context: got {tokens}; expected 1 token or more")
        return sum(
            group.blocks_for(
                tokens,
                in_flight_tokens=self.serving.max_in_flight_tokens,
                encoder_tokens=self.serving.max_num_batched_tokens,
                align=self.align,
            )
            for group in self.groups
        )

    def bytes_for_one_request(self, tokens: int) -> int:
        """Return the bytes of the shared pool that one request of ``tokens`` tokens takes at most, on one rank."""
        return self.blocks_for_one_request(tokens) * self.padded_bytes_per_block

    def as_dict(self, context: int | None = None) -> dict[str, Any]:
        """Return the numbers as plain data; names as in vLLM where it has one."""
        lengths = sorted({length for length in LENGTHS if length < self.max_model_len} | {self.max_model_len})
        data: dict[str, Any] = {
            "architecture": self.architecture,
            "source": self.source,
            "rule": self.rule_source,
            "vllm_version": self.serving.vllm_version,
            "tp": self.serving.tp,
            "pp": self.serving.pp,
            "model_dtype": self.model_dtype,
            "kv_cache_dtype": self.serving.kv_cache_dtype,
            "resolved_kv_cache_dtype": self.cache_dtype,
            "block_size": self.block_size,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "window_bytes_per_token": self.window_bytes_per_token,
            "state_bytes_per_sequence": self.state_bytes_per_sequence,
            "state_bytes_per_sequence_padded": self.state_bytes_per_sequence_padded,
            "padded_bytes_per_block": self.padded_bytes_per_block,
            "rank_bytes_per_block": list(self.rank_bytes_per_block),
            "max_model_len": self.max_model_len,
            "max_in_flight_tokens": self.serving.max_in_flight_tokens,
            "bytes_for_one_request_at_len": {str(length): self.bytes_for_one_request(length) for length in lengths},
            "per_layer": _layers_as_dicts(self.layers),
            "groups": [_group_as_dict(group) for group in self.groups],
            "notes": list(self.notes),
        }
        if context is not None:
            data["context"] = context
            data["bytes_for_one_request"] = self.bytes_for_one_request(context)
        return data


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


def _per_token(specs: Iterable[LayerSpec]) -> int | float:
    """Return the bytes of one token, whole unless a latent covers several tokens."""
    total = sum((Fraction(spec.unpadded_page_bytes, spec.block_size) for spec in specs), Fraction(0))
    return int(total) if total.denominator == 1 else float(total)


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
    latent_only = all(spec.kind == MLA for spec in layers) and bool(layers)
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
    found = [view.integer(key) for key in LENGTH_KEYS if isinstance(view.written(key), int)]
    if view.written("model_max_length") is not None and isinstance(view.written("model_max_length"), int):
        return view.integer("model_max_length")
    if found:
        return min(found)
    inherited = [view.integer(key) for key in LENGTH_KEYS if isinstance(view.get(key), int)]
    return min(inherited) if inherited else 2048


def _layers_as_dicts(layers: tuple[LayerSpec, ...]) -> list[dict[str, Any]]:
    counts: dict[LayerSpec, int] = {}
    for spec in layers:
        counts[spec] = counts.get(spec, 0) + 1
    return [_spec_as_dict(spec, count) for spec, count in counts.items()]


def _spec_as_dict(spec: LayerSpec, count: int) -> dict[str, Any]:
    data: dict[str, Any] = {"type": spec.kind, "layers": count, "block_size": spec.block_size}
    if spec.kind == STATE:
        data["shapes"] = [list(shape) for shape in spec.state_shapes]
        data["dtypes"] = list(spec.state_dtypes)
        data["mamba_type"] = spec.state_type
        data["unpadded_page_size_bytes"] = spec.unpadded_page_bytes
    else:
        data["num_kv_heads"] = spec.kv_heads
        data["head_size"] = spec.head_size
        data["dtype"] = spec.dtype
        if spec.kind != MLA:
            data["head_size_v"] = spec.head_size_v
    optional = {
        "state_content_bytes": spec.content_bytes,
        "num_head_slots": spec.head_slots,
        "sliding_window": spec.window,
        "attention_chunk_size": spec.chunk,
        "page_size_padded": spec.padded_page_bytes,
        "cache_role": spec.role or None,
    }
    data.update({key: value for key, value in optional.items() if value is not None})
    data["page_size_bytes"] = spec.page_bytes
    return data


def _group_as_dict(group: Group) -> dict[str, Any]:
    data: dict[str, Any] = {
        "type": group.kind,
        "layers": len(group.layers),
        "block_size": group.block_size,
        "page_size_bytes": group.page_bytes,
    }
    if group.kind != UNIFORM:
        first = group.specs[0]
        if first.window is not None:
            data["sliding_window"] = first.window
        if first.chunk is not None:
            data["attention_chunk_size"] = first.chunk
    return data
