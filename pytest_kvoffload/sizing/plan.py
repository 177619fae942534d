"""From a configuration to the list of layers that keep a cache, still without block sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pytest_kvoffload.catalog.architectures import Rule
from pytest_kvoffload.errors import SizingError
from pytest_kvoffload.sizing.cache_dtype import check_cache_dtype, refused, token_format
from pytest_kvoffload.sizing.serving import Serving
from pytest_kvoffload.sizing.spec import CHUNK, DTYPE_BYTES, FULL, WINDOW, LayerSpec
from pytest_kvoffload.sizing.view import ConfigView


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Layers in the order in which vLLM registers them; their ``block_size`` is 1 (one token's page), or the
    size that the layer insists on.

    Attributes:
        layers: one entry per layer that has a cache.
        positions: for each entry, the decoder layer that it belongs to (pipeline stages are cut between those).
        decoder_layers: how many decoder layers there are.
        kernel_block: smallest block size of the attention backend, 16 on FlashAttention.
        hybrid: attention and states together, so that pages are unified.
        attention_free: states only.
        latent: latents (MLA), whose hybrid block size is a multiple of 128.
        skipped_dtype: layers at both ends keep the model's dtype (turboquant), which decides the block size.
        encoder_decoder: cross attention; no prefix caching.
        notes: what was assumed, one sentence each.
    """

    layers: tuple[LayerSpec, ...]
    positions: tuple[int, ...]
    decoder_layers: int
    kernel_block: int = 16
    hybrid: bool = False
    attention_free: bool = False
    latent: bool = False
    skipped_dtype: bool = False
    encoder_decoder: bool = False
    packed: bool = False
    """Pages of several sizes lie side by side in a block."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every derivation gets."""

    view: ConfigView
    rule: Rule
    serving: Serving
    model_dtype: str
    cache_dtype: str
    """``--kv-cache-dtype`` after the checkpoint's own scheme has been applied."""


@dataclass(slots=True)
class PlanBuilder:
    """Collects layers; turned into a :class:`Plan` at the end."""

    context: Context
    layers: list[LayerSpec] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, spec: LayerSpec, position: int) -> None:
        """Append one layer."""
        self.layers.append(spec)
        self.positions.append(position)

    def attention(
        self,
        position: int,
        *,
        heads: int,
        size: int,
        size_v: int | None = None,
        window: int | None = None,
        chunk: int | None = None,
        plain: bool = False,
    ) -> None:
        """Append ordinary attention of ``heads`` heads per rank; ``plain`` keeps the model's dtype."""
        self.add(
            attention_spec(
                self.context, heads=heads, size=size, size_v=size_v, window=window, chunk=chunk, plain=plain
            ),
            position,
        )


def attention_spec(
    context: Context,
    *,
    heads: int,
    size: int,
    size_v: int | None = None,
    window: int | None = None,
    chunk: int | None = None,
    plain: bool = False,
) -> LayerSpec:
    """Return the spec of one ordinary attention layer, page of one token."""
    value_size = size if size_v is None else size_v
    name = "auto" if plain or context.rule.ignores_cache_dtype else context.cache_dtype
    if reason := refused(name, context.rule.refuses):
        raise SizingError(f"vLLM refuses --kv-cache-dtype {name} here: {reason}")
    form = token_format(name, model_dtype=context.model_dtype, head_size=size, head_size_v=value_size)
    kind = WINDOW if window is not None else CHUNK if chunk is not None else FULL
    return LayerSpec(
        kind=kind,
        block_size=1,
        kv_heads=heads,
        head_size=size,
        head_size_v=value_size,
        dtype=form.dtype,
        content_bytes=form.content_bytes,
        head_slots=heads * form.slots_per_head if form.slots_per_head != 1 else None,
        window=window,
        chunk=chunk,
    )


def model_dtype(view: ConfigView, serving: Serving) -> str:
    """Return the dtype in which vLLM runs the model: ``--dtype``, else the configuration's; float32 becomes bfloat16.

    Raises:
        SizingError: a dtype that vLLM does not know; names the key.
    """
    if serving.dtype is not None and serving.dtype != "auto":
        return _dtype_name(serving.dtype, "--dtype")
    places: list[Mapping[str, object]] = [view.raw, view.text]
    for key in ("vision_config", "encoder_config"):
        part = view.raw.get(key)
        if isinstance(part, dict):
            places.append(part)
    for place in places:
        for key in ("dtype", "torch_dtype"):
            value = place.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                raise SizingError(f"{view.source}: {key} is {value!r}; expected a name such as bfloat16")
            name = _dtype_name(value, f"{view.source}: {key}")
            # dtype auto: a float32 checkpoint is served in the platform's preferred half precision.
            return "bfloat16" if name == "float32" else name
    return "bfloat16"


def resolve_cache_dtype(view: ConfigView, serving: Serving) -> str:
    """Return the KV cache dtype: an explicit one, else what the checkpoint's quantisation declares, else ``auto``."""
    name = serving.kv_cache_dtype
    check_cache_dtype(name)
    if name != "auto":
        return name
    for part in (view.raw, view.text):
        quantisation = part.get("quantization_config") or part.get("compression_config")
        if not isinstance(quantisation, dict):
            continue
        if quantisation.get("kv_cache_scheme"):
            return "fp8"
        nested = quantisation.get("quantization")
        algorithm = quantisation.get("kv_cache_quant_algo") or (
            nested.get("kv_cache_quant_algo") if isinstance(nested, dict) else None
        )
        if isinstance(algorithm, str) and algorithm.lower() in {"fp8", "nvfp4"}:
            return algorithm.lower()
    return "auto"


def _dtype_name(value: str, where: str) -> str:
    name = value.removeprefix("torch.")
    short = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(name, name)
    if short not in DTYPE_BYTES or short in {"uint8", "int8", "float8_e4m3fn"}:
        raise SizingError(f"{where}: got {value!r}; expected bfloat16, float16 or float32")
    return short


Derivation = Callable[[Context], Plan]
