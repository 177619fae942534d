"""Which layers see a window only, and how far it reaches."""

from __future__ import annotations

from pytest_kvoffload.catalog.architectures import LayerPattern, Rule, load_catalog
from pytest_kvoffload.errors import SizingError
from pytest_kvoffload.sizing.view import ConfigView

NEEDS_FLAG = ("qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_moe", "qwen2_moe", "deepseek_ocr2")
"""Model types whose class drops sliding_window unless use_sliding_window is set (transformers 5.19)."""


def configured_window(view: ConfigView) -> int | None:
    """Return ``sliding_window`` as the configuration class leaves it; 0 and null are none."""
    if view.text_model_type.removesuffix("_text") in NEEDS_FLAG and not view.flag("use_sliding_window"):
        return None
    value = view.get("sliding_window")
    if isinstance(value, list):
        raise view.bad("sliding_window", "a list of windows is not known for this architecture")
    window = view.optional_integer("sliding_window")
    return window or None


def layer_types(view: ConfigView, layers: int) -> tuple[str, ...] | None:
    """Return the type of each layer: as written, else as the configuration class would fill it in, else ``None``.

    Raises:
        SizingError: fewer types than layers.
    """
    written = view.strings("layer_types") if view.written("layer_types") is not None else None
    pattern = _pattern(view.text_model_type) or _pattern(view.model_type)
    if written is not None:
        if len(written) < layers:
            raise view.bad("layer_types", f"{len(written)} entries for num_hidden_layers {layers}")
        types = list(written[:layers])
    elif pattern is not None:
        types = _fill(view, pattern, layers)
    elif view.text_model_type.removesuffix("_text") in {"qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni"}:
        first = view.integer("max_window_layers", minimum=0, default=28)
        slides = configured_window(view) is not None
        types = ["sliding_attention" if slides and i >= first else "full_attention" for i in range(layers)]
    elif view.text_model_type == "qwen2_moe":
        first = view.integer("max_window_layers", minimum=0, default=28)
        slides = view.flag("use_sliding_window")
        types = [
            "sliding_attention" if slides and (i + 1) % 2 and i < first else "full_attention" for i in range(layers)
        ]
    elif view.text_model_type == "smollm3":
        types = _smollm3(view, layers)
    else:
        return None
    if pattern is not None and pattern.last_full and types:
        types[-1] = "full_attention"
    return tuple(types)


def layer_windows(view: ConfigView, rule: Rule, layers: int) -> tuple[int | None, ...]:
    """Return the window of each layer, ``None`` for full attention.

    vLLM hands a layer its own window, or else the model's (``CacheConfig.sliding_window``), which is set only when all
    layers slide (engine/arg_utils.py 0.32.0:2248-2254).

    Raises:
        SizingError: vLLM refuses the combination (Qwen2 with some layers sliding).
    """
    types = layer_types(view, layers)
    window = configured_window(view)
    all_slide = types is None or all(kind == "sliding_attention" for kind in types)
    model_wide = window if all_slide else None
    way = rule.window
    if way == "even":
        return tuple(window if i % 2 == 0 else model_wide for i in range(layers))
    if way == "list":
        return _list_windows(view, layers)
    if way == "qwen2" and types is not None and len(set(types)) > 1:
        first = view.get("max_window_layers")
        raise SizingError(
            "vLLM refuses this: Sliding window for some but all layers is not supported. This model "
            "uses sliding window "
            f"but `max_window_layers` = {first} is less than `num_hidden_layers` = {layers} (models/qwen2.py:352)"
        )
    if way == "layer_types" and types is not None:
        extra = rule.window_extra
        own = None if window is None else window + extra
        return tuple(own if kind == "sliding_attention" else model_wide for kind in types)
    return (model_wide,) * layers


def _pattern(model_type: str) -> LayerPattern | None:
    return next((p for p in load_catalog().layer_pattern if model_type in p.model_types), None)


def _fill(view: ConfigView, pattern: LayerPattern, layers: int) -> list[str]:
    every = pattern.every
    if pattern.key and view.has(pattern.key):
        every = view.integer(pattern.key, minimum=0)
    if pattern.other == "sliding_attention" and configured_window(view) is None:
        return ["full_attention"] * layers
    if every == 0:
        return [pattern.other] * layers
    if pattern.first:
        return ["full_attention" if i % every == 0 else pattern.other for i in range(layers)]
    return ["full_attention" if (i + 1) % every == 0 else pattern.other for i in range(layers)]


def _smollm3(view: ConfigView, layers: int) -> list[str]:
    slides = view.flag("use_sliding_window") and configured_window(view) is not None
    rope = view.integers("no_rope_layers") if view.written("no_rope_layers") is not None else None
    interval = view.integer("no_rope_layer_interval", default=4)
    has_rope = [
        bool(rope[i]) if rope is not None and i < len(rope) else bool((i + 1) % interval) for i in range(layers)
    ]
    return ["sliding_attention" if slides and not rope_here else "full_attention" for rope_here in has_rope]


def _list_windows(view: ConfigView, layers: int) -> tuple[int | None, ...]:
    value = view.get("interleaved_sliding_window", view.get("sliding_window"))
    if isinstance(value, list):
        if len(value) < layers:
            raise view.bad("interleaved_sliding_window", f"{len(value)} entries for {layers} layers")
        if not all(item is None or (isinstance(item, int) and item > 0) for item in value):
            raise view.bad("interleaved_sliding_window", "expected whole numbers or null")
        return tuple(value[:layers])
    window = view.optional_integer("sliding_window") or None
    every = view.optional_integer("sliding_window_pattern")
    if window is None or not every:
        return (window,) * layers
    return tuple(None if (i + 1) % every == 0 else window for i in range(layers))
