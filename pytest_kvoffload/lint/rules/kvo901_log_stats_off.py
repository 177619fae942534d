"""A tier whose meters are switched off.

With `--disable-log-stats` vLLM exposes no `vllm:` metric at all: whether the tier is ever hit cannot be seen, and a test
of it reads "absent", not zero.

Bad:

```sh serve.sh
vllm serve m --kv-offloading-size 8 --disable-log-stats
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
    code="KVO901",
    name="log-stats-off",
    severity="warning",
    summary="--disable-log-stats removes every metric that could show the tier at work",
    remedy="drop --disable-log-stats",
    evidence="vLLM v1/engine/async_llm.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the flag beside a store connector."""
    flag = launch.flag("--disable-log-stats")
    if flag is None or (flag.value is not None and (known_text(flag.value) or "").lower() == "false"):
        return
    if context.size is not None or any(u.kind == "store" for u in context.uses):
        yield RULE.at(flag.location, f"{flag.name}: no vllm: metric is left, so nothing shows whether the tier is hit")
