"""A `store_threshold` that means something else, or is refused.

With `TieringOffloadingSpec` a threshold of 2 or more is refused at boot. Its meaning changed in 0.29: until 0.28 it
counted lookups, from 0.29 how often a block was offered; 0 and 1 switch it off.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"store_threshold":2,"secondary_tiers":[{"type":"fs","root_dir":"/kv"}]}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/kv"}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    node_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO314",
    name="store-threshold",
    severity="error",
    summary="store_threshold with the tiering spec is refused; its meaning changed in 0.29",
    remedy="drop store_threshold, or use the plain CPUOffloadingSpec",
    evidence="vLLM v1/kv_offload/tiering/spec.py 0.26-0.33, measured on 0.28 and 0.32",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report refused thresholds, and note the changed meaning where the version is unknown."""
    for use in context.uses:
        member = use.member("store_threshold")
        number = node_number(member.node) if member is not None and not use.vendor else None
        if member is None or number is None or number < 2 or use.name != "OffloadingConnector":
            continue
        if use.tiering:
            yield RULE.at(member.location, "store_threshold of 2 or more is refused with TieringOffloadingSpec")
        elif context.vllm.exact is None:
            yield RULE.at(
                member.location,
                "store_threshold counts lookups until vLLM 0.28, and offers for storage from 0.29 on",
                severity="note",
                versions="0.26-0.28 / 0.29+",
                remedy="check that the number still says what was meant",
            )
