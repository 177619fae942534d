"""A chunk longer than the longest prompt.

Only whole chunks are stored and found. A chunk longer than `--max-model-len` is never full, so nothing is ever stored.

Bad:

```sh serve.sh
export PYTHONHASHSEED=0
export LMCACHE_CHUNK_SIZE=8192
vllm serve m --max-model-len 4096 --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
export PYTHONHASHSEED=0
export LMCACHE_CHUNK_SIZE=256
vllm serve m --max-model-len 4096 --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Location
from pytest_kvoffload.lint.numbers import (
    known_text,
    node_number,
    plain_number,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO704",
    name="chunk-longer-than-context",
    severity="error",
    summary="A chunk longer than --max-model-len is never full: nothing is stored",
    remedy="make the chunk much shorter than the prompts",
    evidence="vLLM offloading/scheduler.py 0.26-0.33, LMCache 0.5.6; measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare the chunk of each tier with the context length."""
    longest = context.number("--max-model-len")
    if longest is None or longest <= 0:
        return
    for location, name, tokens in _chunks(document, launch, context):
        if tokens > longest:
            yield RULE.at(
                location,
                f"{name} makes chunks of {int(tokens)} tokens, longer than --max-model-len {int(longest)}: nothing is ever stored",
            )


def _chunks(document: Document, launch: Launch, context: Context) -> Iterator[tuple[Location, str, float]]:
    block = context.number("--block-size") or 16
    for use in context.uses:
        if use.name == "OffloadingConnector" and not use.vendor:
            size, blocks = use.member("block_size"), use.member("blocks_per_chunk")
            number = node_number(size.node) if size else None
            if size is not None and number is not None:
                yield size.node.location, f"block_size {show_number(number)}", number
            number = node_number(blocks.node) if blocks else None
            if blocks is not None and number is not None:
                yield blocks.node.location, f"blocks_per_chunk {show_number(number)}", number * block
    chunk = context.lmcache_settings.get("chunk_size")
    full = context.lmcache_settings.get("save_unfull_chunk")
    if context.lmcache_in_process and chunk is not None and chunk.number and not (full is not None and full.boolean):
        yield chunk.location, f"{chunk.name} {chunk.text}", chunk.number
    if context.lmcache_mp:
        for other in document.launches:
            flag = other.flag("--chunk-size") if other.product == "lmcache-server" else None
            number = plain_number(known_text(flag.value) or "") if flag is not None else None
            if flag is not None and number is not None:
                yield flag.location, "--chunk-size", number
