"""Makes the test model: a random Llama and a byte-level tokenizer, from a fixed seed.

Runs as a script inside the engine's interpreter (it needs torch, transformers and tokenizers, which the plugin's own
environment does not have): ``python tiny_model.py DIRECTORY RECIPE_JSON``. Nothing is downloaded. Importing it costs
nothing, so that the recipe's defaults are known outside too.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

DEFAULT_RECIPE: dict[str, int] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "layers": 4,
    "heads": 8,
    "kv_heads": 4,
    "max_position_embeddings": 32768,
    "seed": 20260,
}
"""Every key that ``[model] tiny`` may override, with its default."""

VOCABULARY = 260
"""256 bytes and four special tokens."""
FORMAT = 1
"""Grows when this file makes different models from equal recipes."""


def recipe_hash(recipe: dict[str, int]) -> str:
    """A short name for a recipe; equal recipes give equal models."""
    text = json.dumps({"format": FORMAT, **recipe}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def make_model(directory: str, recipe: dict[str, int]) -> None:
    """Write config, weights and tokenizer into ``directory``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(recipe["seed"])
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=recipe["hidden_size"],
        intermediate_size=recipe["intermediate_size"],
        num_hidden_layers=recipe["layers"],
        num_attention_heads=recipe["heads"],
        num_key_value_heads=recipe["kv_heads"],
        max_position_embeddings=recipe["max_position_embeddings"],
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
        tie_word_embeddings=False,
        # Wider than the usual 0.02: with it all logits of so small a model are nearly equal, greedy decoding hangs
        # on rounding, and "the same text" would prove little.
        initializer_range=0.08,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(directory, safe_serialization=True)
    make_tokenizer(recipe["max_position_embeddings"]).save_pretrained(directory)


def make_tokenizer(max_length: int) -> Any:
    """A tokenizer with one token per byte: any text is legal, and lengths are predictable."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # ids must follow the byte values, so the byte-level alphabet is listed in that order.
    vocabulary = {character: number for number, character in enumerate(byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer.add_special_tokens(list(special.values()))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        chat_template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
        **special,
    )


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2's table), in byte order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    make_model(sys.argv[1], json.loads(sys.argv[2]))
