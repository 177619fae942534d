"""Tiering options without the tiering spec.

`secondary_tiers`, `backpressure` and `tier_poll_interval_s` are only read by `"spec_name": "TieringOffloadingSpec"`. Without
it the engine keeps the host tier only, and nothing goes to disk.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/kv"}]}}'
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
from pytest_kvoffload.lint.rule import Rule

KEYS = ("secondary_tiers", "backpressure", "tier_poll_interval_s")
RULE = Rule(
    code="KVO605",
    name="tiers-without-tiering-spec",
    severity="error",
    summary='secondary_tiers is ignored without "spec_name": "TieringOffloadingSpec"',
    remedy='add "spec_name": "TieringOffloadingSpec"',
    evidence="vLLM v1/kv_offload/factory.py, tiering/spec.py 0.26-0.33, measured on 0.32",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report tiering keys under any other spec."""
    for use in context.uses:
        spec = use.option("spec_name")
        if use.name != "OffloadingConnector" or use.vendor or use.own_spec or use.tiering:
            continue
        if context.size is not None and context.backend != "native":
            continue
        if spec is not None and (spec.kind == "unresolved" or spec.value != "CPUOffloadingSpec"):
            continue  # another spec name is reported as such
        for key in KEYS:
            member = use.member(key)
            empty = member is not None and member.node.kind == "array" and not member.node.items
            if member is not None and not empty:
                yield RULE.at(
                    member.location, f"{key} is ignored without TieringOffloadingSpec: there is no second tier"
                )
    top = context.uses[0] if context.uses else None
    if top is not None and top.name is None and context.size is not None and context.backend == "native":
        member = top.member("secondary_tiers")
        if member is not None and top.option("spec_name") is None:
            yield RULE.at(
                member.location, "secondary_tiers is ignored without TieringOffloadingSpec: there is no second tier"
            )
