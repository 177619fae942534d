"""A KV dtype that the native tier corrupts.

With a `*_per_token_head` KV dtype the native connector of older versions lays the cache out over all layers and its
scales overwrite the data: the first answer is already wrong. Fixed by vLLM PR 49226, which is in none of the sources
read here up to the version named in the finding.

Bad:

```sh run.sh
docker run --ipc=host vllm/vllm-openai:v0.25.0 --model m --kv-cache-dtype fp8_per_token_head --kv-offloading-size 8
```

Good:

```sh run.sh
docker run --ipc=host vllm/vllm-openai:v0.25.0 --model m --kv-cache-dtype fp8 --kv-offloading-size 8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO803",
    name="per-token-head-cache",
    severity="error",
    versions="0.20-0.26",
    summary="fp8_per_token_head with the native connector gives wrong answers",
    remedy="use --kv-cache-dtype fp8 or auto, or a vLLM with PR 49226",
    evidence="vLLM issue 48412, PR 49226; offloading_connector.py 0.26: prefer_cross_layer_blocks is always true",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the dtype beside the native connector."""
    flag = launch.flag("--kv-cache-dtype")
    text = known_text(flag.value) if flag is not None else None
    if flag is None or text is None or not text.endswith("_per_token_head"):
        return
    if "OffloadingConnector" not in context.running or context.vllm.at_least("0.27"):
        return
    yield RULE.at(
        flag.location,
        f"--kv-cache-dtype {text} with OffloadingConnector corrupts answers from the first request",
        severity=None if context.vllm.exact else "warning",
    )
