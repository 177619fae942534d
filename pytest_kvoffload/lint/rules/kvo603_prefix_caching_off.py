"""A connector that needs prefix caching, with prefix caching off.

`SimpleCPUOffloadConnector` switches itself off with one warning, and so does LMCache's lazy offload. The native
`OffloadingConnector` keeps working (every repeat is loaded from the host), which is noted only.

Bad:

```sh serve.sh
vllm serve m --no-enable-prefix-caching --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```

Good:

```sh serve.sh
vllm serve m --enable-prefix-caching --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO603",
    name="prefix-caching-off",
    severity="error",
    summary="SimpleCPUOffloadConnector switches itself off when prefix caching is off",
    remedy="drop --no-enable-prefix-caching",
    evidence="vLLM simple_cpu_offload_connector.py 0.26-0.33; kvcached issue 267",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report prefix caching that is off beside connectors that live on it."""
    flag = context.prefix_caching_off
    if flag is None:
        return
    lazy = any(
        (node := use.option("lmcache.mp.lazy_offload")) is not None and node.value in (True, "true", "1")
        for use in context.uses
    )
    if "SimpleCPUOffloadConnector" in context.running:
        yield RULE.at(
            flag.location, f"{flag.name}: SimpleCPUOffloadConnector switches itself off, nothing is offloaded"
        )
    elif lazy:
        yield RULE.at(flag.location, f"{flag.name}: LMCache's lazy offload needs prefix caching")
    elif "OffloadingConnector" in context.running:
        yield RULE.at(
            flag.location,
            f"{flag.name}: every repeat is reloaded from the host tier, and hybrid models refuse to start",
            severity="note",
        )
