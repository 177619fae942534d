"""LMCache with every tier switched off.

`LMCACHE_LOCAL_CPU=False` without a disk, a remote store or another backend leaves LMCache nowhere to keep anything: it
allocates its pool and every lookup misses.

Bad:

```sh run.sh
export PYTHONHASHSEED=0
export LMCACHE_LOCAL_CPU=False
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export PYTHONHASHSEED=0
export LMCACHE_LOCAL_CPU=True
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

ELSEWHERE = {
    "local_disk", "remote_url", "remote_storage_plugins", "storage_plugins", "external_backends", "gds_path", "maru_path",
    "extra_config", "enable_p2p", "enable_pd", "remote_config_url", "nixl_backends",
}  # fmt: skip
RULE = Rule(
    code="KVO414",
    name="lmcache-no-tier",
    severity="warning",
    confidence="medium",
    summary="LMCACHE_LOCAL_CPU=False and no other tier: nothing is kept",
    remedy="switch the CPU tier on, or configure a disk or remote tier",
    evidence="LMCache 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the last tier being switched off."""
    if not context.lmcache_in_process or context.disaggregated or context.env_set("LMCACHE_CONFIG_FILE"):
        return
    settings = context.lmcache_settings
    cpu = settings.get("local_cpu")
    if cpu is not None and cpu.boolean is False and not ELSEWHERE & set(settings):
        yield RULE.at(cpu.location, f"{cpu.name} is false and there is no other tier: every lookup misses")
