"""An LMCache CPU pool of zero.

`LMCACHE_MAX_LOCAL_CPU_SIZE=0` does not mean "no CPU tier": the pool is also the staging buffer of every other tier, and
without it LMCache fails inside the worker, in silence, disk or not. In disaggregated prefill a zero is usual and is not
reported.

Bad:

```sh run.sh
export PYTHONHASHSEED=0
export LMCACHE_MAX_LOCAL_CPU_SIZE=0
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export PYTHONHASHSEED=0
export LMCACHE_MAX_LOCAL_CPU_SIZE=5
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO413",
    name="lmcache-zero-cpu",
    severity="error",
    summary="LMCACHE_MAX_LOCAL_CPU_SIZE=0 switches LMCache off altogether",
    remedy="give a size above zero: it is the staging buffer of the other tiers too",
    evidence="LMCache local_cpu_backend.py 0.5.6, measured: KeyError LocalCPUBackend",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report a pool of zero outside disaggregated prefill."""
    if not context.lmcache_in_process or context.disaggregated:
        return
    setting = context.lmcache_settings.get("max_local_cpu_size")
    if setting is not None and setting.text is not None and setting.number == 0:
        yield RULE.at(setting.location, f"{setting.name} 0 switches LMCache off: zero hits, no error, healthy server")
