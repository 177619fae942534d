"""The unit in which a connector stores and serves: its chunk, read from the effective configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_kvoffload.records import ServerInfo
from pytest_kvoffload.workload.plan import DEFAULT_BLOCK_TOKENS


def extra_config(info: ServerInfo) -> Mapping[str, Any]:
    """Return the connector's extra configuration as the server has it; empty when it does not tell."""
    extra = (info.kv_transfer_config or {}).get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def chunk_tokens(info: ServerInfo) -> int:
    """Return the tokens of one offload chunk: only full chunks are stored, and hits are multiples of it."""
    if info.chunk_tokens is not None:
        return info.chunk_tokens
    block = info.block_size_tokens or DEFAULT_BLOCK_TOKENS
    extra = extra_config(info)
    if isinstance(extra.get("blocks_per_chunk"), int):
        return block * int(extra["blocks_per_chunk"])
    if isinstance(extra.get("block_size"), int):
        return int(extra["block_size"])
    return block
