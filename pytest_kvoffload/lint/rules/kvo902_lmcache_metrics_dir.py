"""In-process LMCache whose metrics do not reach vLLM.

The `lmcache:` metrics appear on vLLM's `/metrics` only when `PROMETHEUS_MULTIPROC_DIR` is set before vLLM starts.

Bad:

```sh run.sh
export PYTHONHASHSEED=0
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export PYTHONHASHSEED=0
export PROMETHEUS_MULTIPROC_DIR=/tmp/metrics
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO902",
    name="lmcache-metrics-dir",
    severity="note",
    summary="No lmcache: metrics without PROMETHEUS_MULTIPROC_DIR",
    remedy="set PROMETHEUS_MULTIPROC_DIR to a fresh directory for each server",
    evidence="LMCache observability.py 0.5.6, measured; LMCache issues 621, 1447",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Note in-process LMCache without the directory, where the environment is known."""
    use = context.use_of("LMCacheConnectorV1")
    if use is None or not context.lmcache_in_process or not launch.env_complete:
        return
    if launch.env_var("PROMETHEUS_MULTIPROC_DIR") is None:
        yield RULE.at(use.location, "no PROMETHEUS_MULTIPROC_DIR: lmcache: metrics do not appear on /metrics")
