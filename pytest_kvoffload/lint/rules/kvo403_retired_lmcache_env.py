"""A variable that older LMCache read and 0.5 does not.

The `LMCACHE_NIXL_*` family became `LMCACHE_PD_*`, `LMCACHE_LOCAL_DEVICE` and `LMCACHE_MAX_LOCAL_CACHE_SIZE` are names of the
first releases. They are dropped without a word. `LMCACHE_USE_EXPERIMENTAL` does nothing any more.

Bad:

```sh run.sh
export LMCACHE_MAX_LOCAL_CACHE_SIZE=20
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export LMCACHE_MAX_LOCAL_CPU_SIZE=20
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

SIZES = {"LMCACHE_MAX_LOCAL_CACHE_SIZE", "LMCACHE_LOCAL_DEVICE", "LMCACHE_INSTANCE_ID"}
RULE = Rule(
    code="KVO403",
    name="retired-lmcache-env",
    severity="warning",
    loose=True,
    products=("vllm", "sglang", "unknown"),
    versions="LMCache 0.5",
    summary="A variable name that LMCache 0.5 no longer reads",
    remedy="write the name that replaced it",
    evidence="LMCache 0.5.0 and 0.5.6 sources: no reference",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report retired names."""
    if context.lmcache.before("0.4") or not (context.lmcache_in_process or launch.product != "vllm"):
        return
    for variable in launch.env:
        new = catalog.LMCACHE_ENV_RETIRED.get(variable.name)
        if new is None or not variable.reaches:
            continue
        tier = variable.name in {"LMCACHE_MAX_LOCAL_CACHE_SIZE", "LMCACHE_LOCAL_DEVICE"}
        yield RULE.at(
            variable.location,
            f"LMCache 0.5 does not read {variable.name}"
            + (f": it became {new}" if new else ": nothing depends on it any more"),
            remedy=f"write {new}" if new else "delete it",
            severity="error" if tier else None,
        )
