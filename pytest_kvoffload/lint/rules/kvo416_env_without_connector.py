"""LMCache settings and no connector that would read them.

`LMCACHE_*` variables do nothing by themselves: vLLM needs a `--kv-transfer-config` with an LMCache connector.

Bad:

```sh run.sh
export LMCACHE_LOCAL_CPU=True
export LMCACHE_MAX_LOCAL_CPU_SIZE=20
vllm serve m --enable-prefix-caching
```

Good:

```sh run.sh
export LMCACHE_LOCAL_CPU=True
export LMCACHE_MAX_LOCAL_CPU_SIZE=20
vllm serve m --enable-prefix-caching --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO416",
    name="env-without-connector",
    severity="warning",
    confidence="medium",
    summary="LMCACHE_ settings and no connector that reads them",
    remedy='add --kv-transfer-config \'{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}\'',
    evidence="vLLM config/kv_transfer.py 0.26-0.33: LMCache is only loaded by its connectors",
)
TIERS = {"local_cpu", "max_local_cpu_size", "local_disk", "max_local_disk_size", "remote_url", "chunk_size"}


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report settings beside a complete command line without any KV connector."""
    if context.has_connector or not context.complete or launch.flag("--connector", "--kv-connector", "--config"):
        return
    for setting in context.lmcache_settings.values():
        if setting.origin == "env" and setting.key in TIERS:
            yield RULE.at(setting.location, f"no connector of this launch reads {setting.name}")
            return
