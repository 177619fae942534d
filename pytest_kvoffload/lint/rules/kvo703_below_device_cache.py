"""A host tier no larger than the device cache.

The native tier is inclusive: it holds what the device holds, plus what it has room for. Not larger than the device
cache, it adds next to nothing. Reported where the device cache is given with `--kv-cache-memory-bytes`.

Bad:

```sh serve.sh
vllm serve m --kv-cache-memory-bytes 40G --kv-offloading-size 20
```

Good:

```sh serve.sh
vllm serve m --kv-cache-memory-bytes 40G --kv-offloading-size 160
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    show_bytes,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO703",
    name="below-device-cache",
    severity="warning",
    confidence="medium",
    summary="The host tier is not larger than the device cache and adds next to nothing",
    remedy="make the tier several times the device cache of all ranks",
    evidence="vLLM tuning notes, PR 43946; v1/kv_offload/cpu/manager.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare each native tier with the device cache over the ranks."""
    device, ranks = context.number("--kv-cache-memory-bytes"), context.ranks
    blocks, per_token = context.number("--num-gpu-blocks-override"), context.kv_bytes_per_token
    block_size = context.number("--block-size")
    if device is not None and ranks is not None:
        total = int(device) * ranks
    elif blocks is not None and per_token is not None and block_size is not None:
        total = int(blocks * block_size * per_token)
    else:
        return
    for tier in context.native_tiers:
        if 2**20 <= tier.bytes <= total:
            yield RULE.at(
                tier.location,
                f"{tier.written} is {show_bytes(tier.bytes)}, the device cache {show_bytes(total)}: the tier adds next to nothing",
            )
