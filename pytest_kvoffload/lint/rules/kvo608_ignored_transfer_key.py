"""Transfer options that an offload connector never reads.

`kv_load_failure_policy`, `kv_port`, `kv_buffer_device` and `enable_permute_local_kv` belong to prefill/decode transfer.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_load_failure_policy":"recompute","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
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

KEYS = ("kv_load_failure_policy", "kv_port", "kv_buffer_device", "enable_permute_local_kv")
RULE = Rule(
    code="KVO608",
    name="ignored-transfer-key",
    severity="note",
    summary="kv_load_failure_policy and other options that an offload connector never reads",
    remedy="delete the key",
    evidence="vLLM offloading/worker.py asserts success 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Note options without effect on the native connectors."""
    for use in context.uses:
        if use.child or use.vendor or use.name not in {"OffloadingConnector", "SimpleCPUOffloadConnector"}:
            continue
        for key in KEYS:
            member = use.node.member(key)
            if member is not None and member.node.kind != "null":
                yield RULE.at(member.location, f"{use.name} never reads {key}")
