"""What an image name says: which server it starts, and which versions are inside."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_kvoffload.lint.model import Product, Value

_VLLM_IMAGE = re.compile(
    r"(?:^|/)(?:vllm-openai(?:-cpu|-rocm)?|vllm-cpu(?:-release-repo|-env)?|vllm-tpu|vllm-openai-[\w.-]+|vllm-rocm|"
    r"vllm-ascend|vllm-xpu|vllm-openai_[\w.-]+|vllm-nightly|vllm)(?::|@|$)"
)
_LLMD_IMAGE = re.compile(r"llm-d(?:-cuda|-dev|-rocm|-xpu|-cpu|-gb200)?(?::|@|$)")
_TAG_VERSION = re.compile(r"^v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:rc|post|dev|a|b)\d+)?)(?:$|[-_+.])")


def image_product(name: str) -> Product:
    """Return the server that the image's entry point starts, ``unknown`` when its name does not say."""
    if _VLLM_IMAGE.search(name) or "vllm-openai" in name:
        return "vllm"
    if "sglang" in name:
        return "sglang"
    if re.search(r"lmcache/(?:lmcache|standalone)", name):
        return "lmcache-server"
    return "unknown"


def image_versions(image: Value | None) -> tuple[Value | None, Value | None]:
    """Return (vLLM version, LMCache version) read from the tag.

    ``vllm/vllm-openai:v0.28.0`` names vLLM; ``lmcache/vllm-openai:v0.5.6`` names LMCache; a tag such as ``latest`` or
    ``nightly-<sha>`` names nothing. llm-d's and unknown images have numbers of their own.
    """
    if image is None or not image.text or ":" not in image.text:
        return None, None
    name, _, tag = image.text.partition("@")[0].rpartition(":")
    match = _TAG_VERSION.match(tag)
    if not name or "/" in tag or match is None:
        return None, None
    version = replace(image, text=match.group(1))
    if "lmcache" in name.lower():
        return None, version
    last = name.rsplit("/", 1)[-1]
    if last.startswith(("vllm-ascend", "llm-d")):
        return None, None
    if _VLLM_IMAGE.search(name) or "vllm-openai" in name:
        return version, None
    return None, None
