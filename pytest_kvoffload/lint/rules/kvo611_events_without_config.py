"""KV events of a tier that nothing publishes.

`"enable_kv_events": true` of a secondary tier needs `--kv-events-config`; without it there is one warning and no event.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/kv","enable_kv_events":true}]}}'
```

Good:

```sh serve.sh
vllm serve m --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq"}' --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/kv","enable_kv_events":true}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO611",
    name="events-without-config",
    severity="warning",
    summary="enable_kv_events of a tier without --kv-events-config",
    remedy='add --kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq"}\'',
    evidence="vLLM v1/kv_offload/tiering 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report tiers that publish into nothing."""
    if not context.complete or any(f.name.replace("_", "-").startswith("--kv-events-config") for f in launch.flags):
        return
    if launch.config("kv-events-config") is not None:
        return
    for use in context.uses:
        for tier in use.tiers() if use.tiering else ():
            member = tier.member("enable_kv_events")
            if member is not None and member.node.value is True:
                yield RULE.at(member.location, "no event leaves this tier: --kv-events-config is missing")
