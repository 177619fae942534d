"""A `kv_role` that does not exist.

Legal are `kv_producer`, `kv_consumer` and `kv_both`; anything else is refused at boot.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

ROLES = ("kv_producer", "kv_consumer", "kv_both")
RULE = Rule(
    code="KVO204",
    name="unknown-role",
    severity="error",
    summary="kv_role is none of kv_producer, kv_consumer and kv_both",
    remedy="write kv_both for a tier of one instance, kv_producer or kv_consumer for disaggregated prefill",
    evidence="vLLM config/kv_transfer.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report illegal roles."""
    for use in context.uses:
        role = use.node.get("kv_role")
        if role is None or role.kind in {"null", "unresolved"} or role.value in ROLES:
            continue
        hint = did_you_mean(str(role.value), ROLES, cutoff=0.3)
        yield RULE.at(role.location, f"kv_role {role.value!r} does not exist: vLLM refuses it at boot{hint}")
