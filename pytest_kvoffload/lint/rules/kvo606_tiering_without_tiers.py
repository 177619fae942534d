"""The tiering spec without tiers.

`TieringOffloadingSpec` without `secondary_tiers` (or with an empty list) boots as a plain host tier.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/kv"}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO606",
    name="tiering-without-tiers",
    severity="error",
    summary="TieringOffloadingSpec without secondary_tiers is a host tier only",
    remedy='add "secondary_tiers": [{"type": "fs", "root_dir": "/path"}], or use the plain spec',
    evidence="vLLM v1/kv_offload/tiering/spec.py 0.26-0.33, measured on 0.32",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report a tiering spec that has nothing to tier to."""
    for use in context.uses:
        if not use.tiering or use.vendor or use.own_spec:
            continue
        tiers, spec = use.option("secondary_tiers"), use.member("spec_name")
        near = (
            [m.key for m in use.extra.members if did_you_mean(m.key, ["secondary_tiers"], cutoff=0.75)]
            if use.extra
            else []
        )
        if spec is not None and (
            (tiers is None and not near) or (tiers is not None and tiers.kind == "array" and not tiers.items)
        ):
            yield RULE.at(spec.location, "TieringOffloadingSpec has no secondary_tiers: there is only the host tier")
