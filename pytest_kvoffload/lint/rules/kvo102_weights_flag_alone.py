"""A flag that moves model weights, with no sign of what was meant.

Nothing near the flag says whether weights or the KV cache were meant. Weights are a legitimate reason, so this is a
note and only given with `--pedantic`.

Bad:

```sh serve.sh
vllm serve Qwen/Qwen3-8B --cpu-offload-gb 32
```

Good:

```sh serve.sh
vllm serve Qwen/Qwen3-8B --kv-offloading-size 32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule
from pytest_kvoffload.lint.rules.kvo101_weights_flag_for_kv import weights_flags_in_use

RULE = Rule(
    code="KVO102",
    name="weights-flag-alone",
    severity="note",
    confidence="low",
    pedantic=True,
    summary="A flag that moves model weights, with no sign of what was meant",
    remedy="if the KV cache is meant, write --kv-offloading-size GIB; if weights are meant, say so in a comment",
    evidence="vLLM config/offload.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report weights flags without any KV intent."""
    if context.kv_intent is not None:
        return
    for flag in weights_flags_in_use(launch):
        yield RULE.at(flag.location, f"{flag.name} moves model weights; it does nothing for the KV cache")
