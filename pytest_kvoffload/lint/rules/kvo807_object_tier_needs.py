"""An object tier without what nixl needs.

The `obj` tier (and `p2p`) moves data with nixl. With nixl 1.5 the engine dies at its first finished transfer unless
`NIXL_TELEMETRY_ENABLE=y` is set; health checks stay green until then.

Bad:

```sh serve.sh
export PYTHONHASHSEED=0
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"obj","store_config":{"bucket":"kv","endpoint_override":"http://minio:9000"}}]}}'
```

Good:

```sh serve.sh
export PYTHONHASHSEED=0
export NIXL_TELEMETRY_ENABLE=y
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"obj","store_config":{"bucket":"kv","endpoint_override":"http://minio:9000"}}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO807",
    name="object-tier-needs",
    severity="warning",
    confidence="medium",
    versions="0.32 with nixl 1.5",
    summary="The obj tier without NIXL_TELEMETRY_ENABLE=y dies at its first transfer",
    remedy="set NIXL_TELEMETRY_ENABLE=y and install nixl in the image",
    evidence="vLLM 0.32.0 with nixl 1.5.1, measured: NIXL_ERR_NO_TELEMETRY",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report object tiers whose environment is known and lacks the variable."""
    if context.env_set("NIXL_TELEMETRY_ENABLE") or not launch.env_complete:
        return
    for use in context.uses:
        for tier in use.tiers() if use.tiering else ():
            kind = tier.get("type")
            if kind is not None and kind.value == "obj":
                yield RULE.at(tier.location, "the obj tier dies at its first transfer without NIXL_TELEMETRY_ENABLE=y")
