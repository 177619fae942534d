"""A flag that vLLM removed.

`--swap-space` went with the V0 engine's swapping in 0.18; the argument parser refuses it and the server does not start.

Bad:

```sh serve.sh
vllm serve m --swap-space 16
```

Good:

```sh serve.sh
vllm serve m --kv-offloading-size 16
```
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO511",
    name="removed-flag",
    severity="error",
    versions="--swap-space 0.18+",
    summary="--swap-space and other flags that vLLM removed: the server does not start",
    remedy="write --kv-offloading-size GIB",
    evidence="vLLM PR 36216; engine/arg_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report removed flags, unless the known version still has them."""
    removed = catalog.curated()["removed_flags"]
    for flag in launch.flags:
        entry = removed.get(flag.name.replace("_", "-"))
        if entry is None or context.vllm.before(entry["removed"]):
            continue
        late = context.vllm.exact is None and Version(entry["removed"]) > Version("0.20")
        yield RULE.at(
            flag.location,
            f"{flag.name} was removed in vLLM {entry['removed']}: the server does not start",
            remedy=f"use {entry['use']}",
            versions=f"{entry['removed']}+",
            severity="warning" if late else None,
        )
    mode = launch.flag("--mamba-cache-mode")
    if mode is not None and known_text(mode.value) == "all" and not context.vllm.before("0.32"):
        yield RULE.at(
            mode.location,
            "--mamba-cache-mode all was removed in vLLM 0.32",
            remedy="write align, or leave the flag out",
            versions="0.32+",
            severity=None if context.vllm.exact else "warning",
        )
