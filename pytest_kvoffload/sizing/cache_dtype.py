"""What ``--kv-cache-dtype`` makes of a token of one head.

Sources (0.32.0): v1/attention/backends/triton_attn.py:284 (per-token-head), flashinfer.py:433 and
utils/torch_utils.py:556 (nvfp4), turboquant_attn.py:141 with quantization/turboquant/config.py (turboquant),
mla_attention.py:1350-1376 and :359-369 (latents).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_kvoffload.errors import SizingError, UsageError, did_you_mean
from pytest_kvoffload.sizing.spec import DTYPE_BYTES, ceil_div

PLAIN = {"float16": "float16", "half": "float16", "bfloat16": "bfloat16", "float32": "float32", "float": "float32"}
FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
PER_TOKEN_HEAD = {"fp8_per_token_head": "uint8", "int8_per_token_head": "int8", "int4_per_token_head": "uint8"}
NVFP4 = ("nvfp4", "nvfp4_4over6")
TURBOQUANT: Mapping[str, tuple[int, int]] = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""Bits of a key element and of a value element."""
DS_MLA: Mapping[str, int] = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of one token in the packed latent formats of sparse attention."""
KNOWN = ("auto", *PLAIN, *FP8, *PER_TOKEN_HEAD, *NVFP4, *TURBOQUANT, *DS_MLA, "ultraquant_4bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFormat:
    """How one head's K and V of one token are stored. ``content_bytes`` ``None``: plain elements of ``dtype``."""

    dtype: str
    content_bytes: int | None = None
    slots_per_head: int = 1


def check_cache_dtype(name: str) -> None:
    """Refuse a name that vLLM does not know.

    Raises:
        UsageError: with the closest known name.
    """
    if name not in KNOWN:
        raise UsageError(f"kv_cache_dtype: {name!r} is unknown{did_you_mean(name, KNOWN)}; known: {', '.join(KNOWN)}")


def token_format(name: str, *, model_dtype: str, head_size: int, head_size_v: int) -> TokenFormat:
    """Return the format of ordinary attention.

    Raises:
        SizingError: no attention backend has this format for ordinary attention.
    """
    if name == "auto":
        return TokenFormat(dtype=model_dtype)
    if name in PLAIN:
        return TokenFormat(dtype=PLAIN[name])
    if name in FP8:
        return TokenFormat(dtype="uint8")
    if name in PER_TOKEN_HEAD:
        sizes = head_size + head_size_v
        if name == "int4_per_token_head":
            sizes = head_size // 2 + head_size_v // 2
        return TokenFormat(dtype=PER_TOKEN_HEAD[name], content_bytes=sizes + 2 * DTYPE_BYTES["float32"])
    if name in NVFP4:
        if head_size != head_size_v:
            # A backend for unlike K and V heads does no packing: one byte an element.
            return TokenFormat(dtype="uint8")
        return TokenFormat(dtype="uint8", content_bytes=head_size // 2 + head_size // 16, slots_per_head=2)
    if name in TURBOQUANT:
        return TokenFormat(dtype="uint8", content_bytes=_turboquant_slot(name, head_size))
    raise SizingError(
        f"vLLM refuses --kv-cache-dtype {name} here: No valid attention backend found (platforms/cuda.py:470)"
    )


def latent_format(name: str, *, model_dtype: str, latent: int, sparse: bool) -> tuple[TokenFormat, str]:
    """Return the format of a latent (MLA), and the dtype string that vLLM resolves to.

    Raises:
        SizingError: vLLM refuses the dtype for latents, in its words.
    """
    if name in NVFP4:
        raise SizingError(
            "vLLM refuses this: nvfp4 KV cache is not supported with MLA (Multi-head Latent "
            "Attention) backends. Please "
            "use a different --kv-cache-dtype (e.g., 'fp8', 'auto', or 'nvfp4_ds_mla' with a sparse MLA backend)"
        )
    if sparse and name in ("auto", *PLAIN):
        resolved = "auto" if name == "bfloat16" else name
        return TokenFormat(dtype=PLAIN.get(name, model_dtype)), resolved
    if sparse and name in (*FP8, "fp8_ds_mla"):
        return TokenFormat(dtype="uint8", content_bytes=DS_MLA["fp8_ds_mla"]), "fp8_ds_mla"
    if not sparse and name == "auto":
        return TokenFormat(dtype=model_dtype), "auto"
    if not sparse and name in PLAIN:
        return TokenFormat(dtype=PLAIN[name]), name
    if not sparse and name in FP8:
        return TokenFormat(dtype="uint8"), name
    raise SizingError(
        f"vLLM refuses --kv-cache-dtype {name} for latent attention (head_size {latent}, "
        f"use_sparse={sparse}): No valid attention backend found (platforms/cuda.py:470)"
    )


def refused(name: str, rules: Mapping[str, str]) -> str | None:
    """Return the reason why an architecture's rule refuses a dtype, ``None`` when it does not."""
    for pattern, reason in rules.items():
        if fnmatchcase(name, pattern):
            return reason
    return None


def _turboquant_slot(name: str, head_size: int) -> int:
    key_bits, value_bits = TURBOQUANT[name]
    key = head_size if key_bits == 8 else ceil_div(head_size * key_bits, 8) + 2
    value = ceil_div(head_size * value_bits, 8) + 4
    return (key + value) + (key + value) % 2
