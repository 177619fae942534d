"""Expandable segments beside a KV connector.

`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` can move memory under a connector's feet; vLLM refuses it with any KV
connector, unless `--enable-cumem-allocator` (or sleep mode) is on.

Bad:

```sh launch.sh
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
vllm serve Qwen/Qwen3-8B --kv-offloading-size 12
```

Good:

```sh launch.sh
vllm serve Qwen/Qwen3-8B --kv-offloading-size 12
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
    code="KVO801",
    name="expandable-segments",
    severity="error",
    summary="expandable_segments:True is refused with any KV connector",
    remedy="unset PYTORCH_CUDA_ALLOC_CONF, or add --enable-cumem-allocator",
    evidence="vLLM config/vllm.py 0.26:901, 0.32:1202; vLLM issue 42404",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the allocator setting beside a connector."""
    variable = launch.env_var("PYTORCH_CUDA_ALLOC_CONF")
    text = known_text(variable.value) if variable is not None and variable.reaches else None
    if variable is None or text is None or "expandable_segments:True" not in text:
        return
    if context.vllm.before("0.20") or launch.flag("--enable-cumem-allocator", "--enable-sleep-mode") is not None:
        return
    if context.size is not None or any(u.name for u in context.uses):
        yield RULE.at(variable.location, "expandable_segments:True is refused at boot with a KV connector")
