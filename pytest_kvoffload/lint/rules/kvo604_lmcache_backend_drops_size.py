"""A size that the LMCache backend does not use.

`--kv-offloading-backend lmcache` only connects to an `lmcache server`. The number given to `--kv-offloading-size` switches
it on and is then dropped: the server's `--l1-size-gb` decides.

Bad:

```sh serve.sh
vllm serve m --kv-offloading-backend lmcache --kv-offloading-size 40
```

Good:

```sh serve.sh
lmcache server --l1-size-gb 40 --eviction-policy LRU &
vllm serve m --kv-offloading-backend lmcache --kv-offloading-size 40
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
    plain_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO604",
    name="lmcache-backend-drops-size",
    severity="warning",
    summary="--kv-offloading-backend lmcache drops the size: the lmcache server sizes itself",
    remedy="size the server: lmcache server --l1-size-gb GIB",
    evidence="vLLM config/vllm.py 0.26-0.33; LMCache 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the size, unless a server of this file is given the same number."""
    if context.backend != "lmcache" or context.size is None:
        return
    for other in document.launches:
        flag = other.flag("--l1-size-gb") if other.product == "lmcache-server" else None
        number = plain_number(known_text(flag.value) or "") if flag is not None else None
        if flag is not None and (number is None or number == context.size_gib):
            return
    shown = known_text(context.size.value)
    yield RULE.at(
        context.size.location,
        f"the lmcache backend does not use the size{f' {shown}' if shown else ''}: the lmcache server's --l1-size-gb decides",
    )
