"""Which words near a launch say that the KV cache is meant."""

from __future__ import annotations

import pytest

from pytest_kvoffload.lint.intent import speaks_of_weights, words_of_kv_offload
from pytest_kvoffload.lint.model import Location, Value


def words(*texts: str) -> list[Value]:
    """Make comments on consecutive lines, two apart when a text is empty."""
    return [Value(text=t, location=Location(path="x", line=i + 2)) for i, t in enumerate(texts) if t]


@pytest.mark.parametrize(
    "text",
    [
        "spill the KV cache to host RAM when 100 long sessions overflow the card",
        "The KV cache does not fit on the GPU, so keep it in CPU memory",
        "offload KV to CPU",
        "KV cache offloading",
        "Starting vLLM with KV-cache offload",
        "evict kv blocks to DRAM",
        "enable kv cache swap to cpu",
        "move key-value cache to main memory",
        "vllm-kv-offload",
        "kv_cache_cpu",
        "lmcache-server",
        "KV缓存卸载到内存",
        "extend the prefix cache with host memory",
    ],
)
def test_these_mean_the_kv_cache(text: str) -> None:
    assert words_of_kv_offload(words(text), "serve.sh") == text


@pytest.mark.parametrize(
    "text",
    [
        "the 70B model does not fit on one 80 GB card",
        "offload 10 GB of weights to leave more room for the KV cache",
        "keep part of the model in host memory, the KV cache stays on the card",
        "frees memory for the KV cache",
        "baseline without KV offload",
        "no LMCache here",
        "quantize the KV cache to fp8",
        "port of the server",
        "CPU offload",
    ],
)
def test_these_do_not(text: str) -> None:
    assert words_of_kv_offload(words(text), "serve.sh") is None


def test_a_wrapped_comment_is_one_sentence() -> None:
    assert words_of_kv_offload(words("the KV cache of long sessions is", "kept in host memory"), "serve.sh")
    assert (
        words_of_kv_offload(words("move the KV cache's neighbours:", "model weights go to the host"), "serve.sh")
        is None
    )


def test_the_file_name_is_a_title() -> None:
    assert words_of_kv_offload([], "deploy/start-kv-offload.sh") == "start-kv-offload.sh"
    assert words_of_kv_offload([], "deploy/kv-offload/start.sh") is None
    assert words_of_kv_offload([], "cpu-offload.sh") is None


def test_only_weights_speak_of_weights() -> None:
    assert speaks_of_weights(words("weights go to the host"))
    assert not speaks_of_weights(words("server parameters", "number of layers"))
    assert not speaks_of_weights(words("8B model; its KV cache does not fit"))
