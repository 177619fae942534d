"""Tiny configurations of several attention kinds, small enough for a real engine core on the CPU."""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "grouped": {**_BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "head-dim": {**_BASE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64},
    "all-windows": {
        **_BASE,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 256,
    },
    "windows-and-full": {
        **_BASE,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "tie_word_embeddings": True,
        "num_hidden_layers": 5,
        "head_dim": 64,
        "sliding_window": 256,
        "query_pre_attn_scalar": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "windows-five-to-one": {
        **_BASE,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "tie_word_embeddings": True,
        "num_hidden_layers": 8,
        "head_dim": 64,
        "sliding_window": 256,
        "query_pre_attn_scalar": 64,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "multi-head": {**_BASE, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 4,
                   "num_experts_per_tok": 2, "num_key_value_heads": 8},
}  # fmt: skip
