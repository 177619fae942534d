"""A backend that nothing switches on.

`--kv-offloading-backend` only chooses; `--kv-offloading-size` is what turns offloading on. Without it nothing happens and
nothing says so.

Bad:

```sh serve.sh
vllm serve m --kv-offloading-backend native --enable-prefix-caching
```

Good:

```sh serve.sh
vllm serve m --kv-offloading-backend native --kv-offloading-size 8 --enable-prefix-caching
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO601",
    name="backend-without-size",
    severity="error",
    summary="--kv-offloading-backend does nothing without --kv-offloading-size",
    remedy="add --kv-offloading-size GIB",
    evidence="vLLM config/vllm.py _post_init_kv_transfer_config 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the backend flag alone on a command line that is wholly known."""
    if context.backend_flag is None or context.size is not None or not context.complete:
        return
    if any(f.name.replace("_", "-").startswith("--kv-offloading-s") for f in launch.flags) or launch.flag("--config"):
        return
    yield RULE.at(
        context.backend_flag.location,
        f"{context.backend_flag.name} does nothing without --kv-offloading-size: no offloading",
    )
