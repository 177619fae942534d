"""Chunk settings that exclude each other or make no chunk.

`block_size` (tokens in a host chunk) and `blocks_per_chunk` (device blocks in a host chunk) say the same thing in two
units: vLLM refuses both together, and refuses zero or less.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"block_size":256,"blocks_per_chunk":16}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"blocks_per_chunk":16}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    node_number,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO311",
    name="chunk-keys",
    severity="error",
    summary="block_size together with blocks_per_chunk, not positive, or no multiple of the device block",
    remedy="give one of block_size and blocks_per_chunk, greater than zero",
    evidence="vLLM offloading/config.py 0.26-0.33, measured on 0.32",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report refused chunk settings."""
    for use in context.uses:
        if use.name != "OffloadingConnector" or use.vendor:
            continue
        size, blocks = use.member("block_size"), use.member("blocks_per_chunk")
        if size is not None and blocks is not None:
            yield RULE.at(blocks.location, "block_size and blocks_per_chunk together are refused at boot")
        for member in (size, blocks):
            number = node_number(member.node) if member is not None else None
            if member is not None and number is not None and number <= 0:
                yield RULE.at(member.node.location, f"{member.key} {show_number(number)} is refused at boot")
        device = context.number("--block-size")
        chunk = node_number(size.node) if size is not None else None
        if size is not None and device and chunk and chunk > 0 and int(chunk) % int(device):
            yield RULE.at(
                size.node.location,
                f"block_size {show_number(chunk)} is no multiple of --block-size {show_number(device)}: the engine dies",
                remedy=f"write a multiple of {show_number(device)}",
            )
