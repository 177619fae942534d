"""A host tier smaller than what one step stores.

Storing is all or nothing for each request and step. A tier that cannot hold the tokens of one full step
(`--max-num-batched-tokens`) stores nothing for long prompts. Reported where the model's KV bytes per token are known.

Bad:

```sh serve.sh
vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-batched-tokens 8192 --kv-offloading-size 0.5
```

Good:

```sh serve.sh
vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-batched-tokens 8192 --kv-offloading-size 32
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
    code="KVO702",
    name="below-one-step",
    severity="warning",
    confidence="medium",
    summary="The host tier is smaller than the KV cache of one full step",
    remedy="make the tier larger, or --max-num-batched-tokens smaller",
    evidence="vLLM v1/kv_offload/cpu/manager.py prepare_store 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare each native tier with one step of a model whose KV bytes are in the catalog."""
    per_token = context.kv_bytes_per_token
    if per_token is None:
        return
    batched = context.number("--max-num-batched-tokens")
    longest = context.number("--max-model-len")
    tokens = min(n for n in (batched, longest, 2048 if batched is None else None) if n is not None)
    need = int(tokens * per_token)
    for tier in context.native_tiers:
        if 2**20 <= tier.bytes < need:
            yield RULE.at(
                tier.location,
                f"{tier.written} is less than one step of {int(tokens)} tokens, which takes {show_bytes(need)} of this model: "
                "long prompts are never stored",
            )
