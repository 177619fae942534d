"""An LMCache tier with the role `kv_consumer`.

In-process LMCache with `kv_consumer` never stores: the tier stays empty and every lookup misses. That is right for
the decode half of disaggregated prefill, which has no tier of its own; it is a mistake where a tier is configured.

Bad:

```sh serve.sh
export PYTHONHASHSEED=0
export LMCACHE_LOCAL_CPU=True
export LMCACHE_MAX_LOCAL_CPU_SIZE=20
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_consumer"}'
```

Good:

```sh serve.sh
export PYTHONHASHSEED=0
export LMCACHE_LOCAL_CPU=True
export LMCACHE_MAX_LOCAL_CPU_SIZE=20
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO206",
    name="consumer-stores-nothing",
    severity="warning",
    confidence="medium",
    summary="LMCache with kv_consumer and a local tier: nothing is ever stored",
    remedy="write kv_both, unless another instance fills this cache",
    evidence="vLLM lmcache_integration/vllm_v1_adapter.py, measured with LMCache 0.5.6",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report consumers that configure a tier of their own and share none."""
    settings = context.lmcache_settings
    shared = {"remote_url", "remote_storage_plugins", "enable_pd", "enable_p2p", "pd_role", "transfer_channel"}
    if shared & set(settings) or any(v.name.startswith("LMCACHE_ENABLE_") for v in launch.env):
        return
    cpu, size, disk = (settings.get(k) for k in ("local_cpu", "max_local_cpu_size", "local_disk"))
    wants_cpu = (cpu is None or cpu.boolean is True) and size is not None and (size.number or 0) > 0
    if not wants_cpu and disk is None:
        return
    for use in context.uses:
        role = use.node.get("kv_role")
        if use.name == "LMCacheConnectorV1" and not use.child and role is not None and role.value == "kv_consumer":
            yield RULE.at(role.location, "kv_consumer never stores, so the tier configured here stays empty")
