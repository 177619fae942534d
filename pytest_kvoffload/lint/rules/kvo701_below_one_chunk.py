"""A host tier that holds not even one chunk.

`cpu_bytes_to_use` is in **bytes**. A number of gigabytes written there holds no chunk: the plain spec boots and never
stores anything, the tiering spec dies on an empty mapping. Below 1 MiB no model has a block that fits.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8}}'
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
from pytest_kvoffload.lint.numbers import (
    GIB,
    node_number,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

LEAST = 2**20
RULE = Rule(
    code="KVO701",
    name="below-one-chunk",
    severity="error",
    summary="cpu_bytes_to_use is in bytes: a number of gigabytes holds no chunk",
    remedy="write bytes: 8589934592 is 8 GiB",
    evidence="vLLM v1/kv_offload/cpu/spec.py 0.26-0.33, measured: boots and never stores",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report tiers too small for any model, and tiers known to be smaller than one block of this model."""
    for tier in context.native_tiers:
        if tier.bytes <= 0 and "size" in tier.written:
            continue  # zero and negative flags are reported by their own rule
        if tier.bytes == 0:
            yield RULE.at(tier.location, f"{tier.written}: counts as missing, the engine does not boot")
        elif tier.bytes < LEAST:
            gib = f": {tier.bytes} GiB would be {tier.bytes * GIB}" if 0 < tier.bytes <= 16384 else ""
            unit = "is in bytes and " if "cpu_bytes" in tier.written else ""
            yield RULE.at(
                tier.location,
                f"{tier.written} {unit}holds no chunk: nothing is ever stored{gib}",
                remedy=f"write {tier.bytes * GIB} for {tier.bytes} GiB" if gib else None,
            )
    for use in context.uses:
        for key in ("disk_capacity_bytes", "sync_load_budget_bytes"):
            member = use.member(key)
            number = node_number(member.node) if member is not None and not use.vendor else None
            if member is not None and number is not None and 0 < number < LEAST and key == "disk_capacity_bytes":
                yield RULE.at(member.node.location, f"{key} {show_number(number)} is in bytes and holds no chunk")
