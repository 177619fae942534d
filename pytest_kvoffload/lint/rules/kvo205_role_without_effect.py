"""A producer or consumer role on a connector that only keeps its own cache.

`OffloadingConnector` and `SimpleCPUOffloadConnector` never look at `kv_role`: a "producer" still loads and a
"consumer" still stores. As a child of `MultiConnector` the role belongs to the pair and is not reported.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_producer","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO205",
    name="role-without-effect",
    severity="warning",
    summary="kv_producer or kv_consumer on a connector that ignores the role",
    remedy="write kv_both: a local tier stores and loads whatever the role says",
    evidence="vLLM v1/kv_offload, offloading_connector.py and simple_cpu_offload_connector.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report one-sided roles on local tiers."""
    for use in context.uses:
        role = use.node.get("kv_role")
        if use.child or role is None or role.value not in {"kv_producer", "kv_consumer"}:
            continue
        if use.name in {"OffloadingConnector", "SimpleCPUOffloadConnector"} and not use.vendor:
            yield RULE.at(role.location, f"{use.name} ignores kv_role: {role.value} stores and loads like kv_both")
