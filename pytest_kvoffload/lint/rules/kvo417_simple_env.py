"""`VLLM_USE_SIMPLE_KV_OFFLOAD` without `--kv-offloading-size`.

The variable only chooses which connector `--kv-offloading-size` sets. Alone, or beside a configuration that names a
connector itself, it does nothing.

Bad:

```sh run.sh
export VLLM_USE_SIMPLE_KV_OFFLOAD=1
vllm serve m --enable-prefix-caching
```

Good:

```sh run.sh
export VLLM_USE_SIMPLE_KV_OFFLOAD=1
vllm serve m --enable-prefix-caching --kv-offloading-size 8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO417",
    name="simple-env",
    severity="error",
    summary="VLLM_USE_SIMPLE_KV_OFFLOAD does nothing without --kv-offloading-size",
    remedy="add --kv-offloading-size GIB",
    evidence="vLLM config/vllm.py _post_init_kv_transfer_config 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the variable where no size makes it count."""
    variable = launch.env_var("VLLM_USE_SIMPLE_KV_OFFLOAD")
    if variable is None or not context.simple_env or context.size is not None or not context.complete:
        return
    if context.use_of("SimpleCPUOffloadConnector") is None:
        yield RULE.at(variable.location, "VLLM_USE_SIMPLE_KV_OFFLOAD only counts together with --kv-offloading-size")
