"""A hybrid model with a connector that does not support hybrid allocation.

With LMCacheConnectorV1 and other connectors without hybrid support vLLM turns the hybrid manager off: models with
state-space layers fail to start, models with sliding windows pay full attention for every layer.

Bad:

```sh serve.sh
export PYTHONHASHSEED=0
vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --kv-offloading-size 64
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

STATE_SPACE = re.compile(
    r"qwen3[-_.]?next|qwen3\.[5-9]|jamba|falcon[-_]?h1|falcon-mamba|granite-4(?:\.\d)?-h|nemotron-h|nemotron-3-nano|nemotron-nano-9b-v2"
    r"|kimi-linear|lfm2|zamba|bamba|minimax-text|plamo-2|mamba",
    re.IGNORECASE,
)
RULE = Rule(
    code="KVO805",
    name="hybrid-model",
    severity="warning",
    confidence="medium",
    summary="A model with state-space layers and a connector without hybrid support",
    remedy="use OffloadingConnector (--kv-offloading-size) or LMCacheMPConnector, which support hybrid models",
    evidence="vLLM config/vllm.py, connector classes 0.26-0.33; vLLM issues 36463, 36636",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report hybrid models by name."""
    model = known_text(launch.model)
    if model is None or not STATE_SPACE.search(model):
        return
    off = launch.flag("--disable-hybrid-kv-cache-manager")
    if off is not None and "OffloadingConnector" in context.running and context.vllm.before("0.20") is not True:
        yield RULE.at(
            off.location,
            f"{model} needs the hybrid KV cache manager, and the native tier supports it: {off.name} turns it off",
            remedy=f"drop {off.name}",
            versions="0.20+",
        )
    if context.size is not None:
        return
    for use in context.uses:
        if use.entry.get("hma") is False and use.kind == "store":
            yield RULE.at(use.location, f"{use.name} turns the hybrid KV cache manager off, and {model} needs it")
            return
