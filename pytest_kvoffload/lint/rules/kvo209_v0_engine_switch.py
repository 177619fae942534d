"""A switch back to the V0 engine.

`VLLM_USE_V1` and the V0 engine are gone; connectors of V0 went with it. The variable is ignored.

Bad:

```sh serve.sh
export VLLM_USE_V1=0
vllm serve m --kv-offloading-size 8
```

Good:

```sh serve.sh
vllm serve m --kv-offloading-size 8
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
    code="KVO209",
    name="v0-engine-switch",
    severity="warning",
    summary="VLLM_USE_V1=0 asks for an engine that no longer exists",
    remedy="delete VLLM_USE_V1",
    evidence="vLLM envs.py 0.26-0.33: the name is absent",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the switch beside a KV intent."""
    variable = launch.env_var("VLLM_USE_V1")
    if variable is not None and known_text(variable.value) == "0" and context.has_connector:
        yield RULE.at(variable.location, "VLLM_USE_V1=0 is ignored: the V0 engine no longer exists")
