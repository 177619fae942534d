"""What the two LMCache kinds read alike."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_kvoffload.engine.connectors.flags import flag_number
from pytest_kvoffload.engine.connectors.interface import LaunchContext
from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.errors import did_you_mean

LOCALHOST = "127.0.0.1"
DEFAULT_CHUNK_TOKENS = 256
ENV: Mapping[str, str] = {"LMCACHE_TRACK_USAGE": "false"}
"""LMCache reports its usage home unless this is exactly ``false`` (lmcache/usage_telemetry/identity.py)."""
_CPU_BLOCK_TOKENS = 128
"""What vLLM's CPU backend takes when no block size is given (vllm/platforms/cpu.py, 0.26 to 0.32)."""


def choice(options: OptionReader, key: str, known: tuple[str, ...], *, default: str) -> str:
    """Read one of a few words; LMCache's and ours are case-sensitive."""
    value = options.text(key)
    if value is None:
        return default
    if value not in known:
        close = {name.lower(): name for name in known}.get(value.lower())
        hint = f" (did you mean {close!r}?)" if close else did_you_mean(value, known)
        raise options.fail(key, f"one of {', '.join(known)}", got=value, hint=hint)
    return value


def block_tokens(context: LaunchContext) -> int | None:
    """vLLM's block size in tokens, as far as it is known before a boot."""
    given = flag_number(context.words, "--block-size")
    return given if given is not None else _CPU_BLOCK_TOKENS if context.cpu_platform else None
