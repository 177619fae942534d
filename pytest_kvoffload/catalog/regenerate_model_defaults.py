"""Write ``model_defaults.json`` from the configuration classes of an installed vLLM and its transformers.

Run with the interpreter that has vLLM::

    PYTHON -m pytest_kvoffload.catalog.regenerate_model_defaults OUTPUT.json

A default that a class derives from other keys (``head_dim`` from the heads, say) is left out: the derivations of
``sizing/`` do the same arithmetic with the values of the file at hand.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

KEY_NAMES = """
num_hidden_layers num_layers n_layer n_layers num_attention_heads n_head n_heads num_key_value_heads num_kv_heads
n_head_kv multi_query_group_num num_attention_groups head_dim hidden_size n_embd d_model hidden_size_per_head
attention_head_dim sliding_window sliding_window_size use_sliding_window max_window_layers sliding_window_pattern
attention_chunk_size kv_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim index_head_dim index_topk
index_topk_freq full_attention_interval linear_num_key_heads linear_num_value_heads linear_key_head_dim
linear_value_head_dim linear_conv_kernel_dim attn_layer_period attn_layer_offset mamba_d_state mamba_d_conv
mamba_expand mamba_d_ssm mamba_n_groups mamba_ngroups mamba_n_heads n_mamba_heads mamba_d_head mamba_num_heads
mamba_head_dim n_groups ssm_state_size conv_kernel state_size expand intermediate_size conv_L_cache conv_dim
num_heads decoder_layers decoder_attention_heads max_source_positions max_target_positions max_position_embeddings
n_positions max_seq_len seq_length num_kv_shared_layers global_head_dim num_global_key_value_heads attention_k_eq_v
multi_query multi_query_attention new_decoder_architecture layer_group_size no_rope_layer_interval
global_attn_every_n_layers swa_head_dim swa_v_head_dim swa_num_key_value_heads num_mem_blocks
"""
KEYS = tuple(KEY_NAMES.split())
PROBES: tuple[dict[str, int], ...] = (
    {"num_attention_heads": 4, "hidden_size": 512},
    {"num_attention_heads": 8, "hidden_size": 512},
    {"num_hidden_layers": 3},
)
"""Arguments that show which values a class derives."""
ENOUGH = frozenset(
    {"num_hidden_layers", "num_attention_heads", "hidden_size", "n_layer", "n_head", "decoder_layers", "num_layers"}
)
"""A class without any of these is not a language model's."""


def main(output: str) -> None:
    """Write the file."""
    warnings.filterwarnings("ignore")
    import transformers
    import vllm
    from transformers import CONFIG_MAPPING
    from vllm.transformers_utils.config import _CONFIG_REGISTRY as VLLM_CONFIGS

    models: dict[str, Any] = {}
    for registry in (CONFIG_MAPPING, VLLM_CONFIGS):
        for name in list(registry.keys()):
            try:
                _record(models, name, registry[name])
            except Exception as error:  # a class that cannot be built without arguments has no defaults to record
                print(f"{name}: {str(error)[:80]}", file=sys.stderr)
    origin = f"transformers {transformers.__version__} and vllm {vllm.__version__}"
    body = {"generated_from": origin, "models": dict(sorted(models.items()))}
    Path(output).write_text(json.dumps(body, indent=0, separators=(",", ":")) + "\n", encoding="utf-8")


def _record(models: dict[str, Any], name: str, cls: Any) -> None:
    config = cls()
    text = config.get_text_config()
    entry = _entry(config, cls)
    if text is not config:
        kind = getattr(text, "model_type", None)
        if kind:
            entry["text"] = kind
            if kind not in models and type(text) is not cls:
                models[kind] = _entry(text, type(text))
    if entry["values"].keys() & ENOUGH or "text" in entry:
        models[name] = entry


def _entry(config: Any, cls: Any) -> dict[str, Any]:
    values = _values(config)
    for probe in PROBES:
        try:
            other = _values(cls(**probe))
        except Exception:  # the class refuses these arguments: nothing learnt
            continue
        for key in list(values):
            if key not in probe and other.get(key) != values[key]:
                del values[key]
    entry: dict[str, Any] = {"values": values}
    mapped = getattr(cls, "attribute_map", None) or {}
    aliases = {key: alias for key, alias in mapped.items() if isinstance(alias, str)}
    if aliases:
        entry["aliases"] = aliases
    return entry


def _values(config: Any) -> dict[str, Any]:
    found = {}
    for key in KEYS:
        try:
            value = getattr(config, key)
        except Exception:  # properties may refuse on incomplete configurations
            continue
        if value is not None and isinstance(value, (int, float, str, bool)):
            found[key] = value
    return found


if __name__ == "__main__":
    main(sys.argv[1])
