"""A budget for each rank that exceeds the memory of all.

`LMCACHE_MAX_LOCAL_CPU_SIZE` is GiB **for each rank** and is allocated in full at start. Times the tensor- and
pipeline-parallel ranks it must fit the container's memory, beside the weights' and the server's own.

Bad:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: engine
      image: lmcache/vllm-openai:latest
      command: ["vllm", "serve", "m", "--tensor-parallel-size", "4", "--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}']
      env:
        - {name: PYTHONHASHSEED, value: "0"}
        - {name: LMCACHE_MAX_LOCAL_CPU_SIZE, value: "200"}
      resources:
        limits: {memory: 600Gi}
```

Good:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: engine
      image: lmcache/vllm-openai:latest
      command: ["vllm", "serve", "m", "--tensor-parallel-size", "4", "--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}']
      env:
        - {name: PYTHONHASHSEED, value: "0"}
        - {name: LMCACHE_MAX_LOCAL_CPU_SIZE, value: "100"}
      resources:
        limits: {memory: 600Gi}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    GIB,
    show_bytes,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO705",
    name="per-rank-times-ranks",
    severity="error",
    summary="LMCACHE_MAX_LOCAL_CPU_SIZE times the ranks exceeds the memory limit or request",
    remedy="divide the budget by the number of ranks",
    evidence="LMCache local_cpu_backend.py 0.5.6; LMCache issues 949, 1399, 2901",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare the product with the container's limit (error) and request (warning)."""
    ranks = context.ranks
    if not context.lmcache_in_process or ranks is None or context.disaggregated or context.from_chart:
        return
    limits = launch.limits
    pools = [("max_local_cpu_size", limits.memory_limit, limits.memory_request)]
    for key, limit, request in pools:
        setting = context.lmcache_settings.get(key)
        if setting is None or setting.number is None or setting.number <= 0 or setting.number > 10**6:
            continue
        total = setting.number * ranks * GIB * (context.data_parallel or 1)
        times = (
            f"{show_number(setting.number)} GiB x {ranks} ranks = {show_bytes(total)}"
            if ranks > 1
            else show_bytes(total)
        )
        if limit is not None and limit.bytes is not None and total >= limit.bytes:
            yield RULE.at(
                setting.location, f"{setting.name} is for each rank: {times}, and the memory limit is {limit.raw}"
            )
        elif request is not None and request.bytes is not None and total >= request.bytes:
            yield RULE.at(
                setting.location,
                f"{setting.name} is for each rank: {times}, and the memory request is {request.raw}",
                severity="warning",
            )
