"""A chunk that is no multiple of the block.

In MP mode the LMCache server's `--chunk-size` must be a multiple of vLLM's block size, or vLLM refuses to start.

Bad:

```sh run.sh
lmcache server --l1-size-gb 20 --eviction-policy LRU --chunk-size 200 &
vllm serve m --block-size 128 --kv-transfer-config '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'
```

Good:

```sh run.sh
lmcache server --l1-size-gb 20 --eviction-policy LRU --chunk-size 256 &
vllm serve m --block-size 128 --kv-transfer-config '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
    plain_number,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO711",
    name="mp-chunk-block",
    severity="error",
    summary="The LMCache server's --chunk-size is no multiple of vLLM's block size",
    remedy="make --chunk-size a multiple of the block size",
    evidence="LMCache vllm_multi_process_adapter.py 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare the two where both stand in one file."""
    block = context.number("--block-size")
    if not context.lmcache_mp:
        return
    for other in document.launches:
        flag = other.flag("--chunk-size") if other.product == "lmcache-server" else None
        chunk = plain_number(known_text(flag.value) or "") if flag is not None else None
        if flag is None or chunk is None or chunk <= 0:
            continue
        unit = int(block) if block else 16
        if int(chunk) % unit:
            yield RULE.at(
                flag.location,
                f"--chunk-size {show_number(chunk)} is no multiple of the block size {unit}: vLLM refuses to start",
                severity=None if block else "warning",
            )
