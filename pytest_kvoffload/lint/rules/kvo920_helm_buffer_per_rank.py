"""A production-stack buffer that takes the pod's whole memory.

`lmcacheConfig.cpuOffloadingBufferSize` becomes `LMCACHE_MAX_LOCAL_CPU_SIZE`: GiB **for each rank**, allocated in full at
start. Times `tensorParallelSize` it must leave room below `requestMemory` and `limitMemory`.

Bad:

```yaml values.yaml
servingEngineSpec:
  modelSpec:
    - name: llama70b
      repository: lmcache/vllm-openai
      modelURL: meta-llama/Llama-3.1-70B-Instruct
      requestMemory: "1024Gi"
      vllmConfig: {tensorParallelSize: 8}
      lmcacheConfig:
        enabled: true
        cpuOffloadingBufferSize: "128"
```

Good:

```yaml values.yaml
servingEngineSpec:
  modelSpec:
    - name: llama70b
      repository: lmcache/vllm-openai
      modelURL: meta-llama/Llama-3.1-70B-Instruct
      requestMemory: "1024Gi"
      vllmConfig: {tensorParallelSize: 8}
      lmcacheConfig:
        enabled: true
        cpuOffloadingBufferSize: "96"
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
from pytest_kvoffload.lint.rules.helm_values import model_specs

RULE = Rule(
    code="KVO920",
    name="helm-buffer-per-rank",
    severity="warning",
    loose=True,
    products=("vllm", "unknown"),
    versions="production-stack",
    summary="cpuOffloadingBufferSize is for each rank: times the ranks it takes the pod's memory",
    remedy="divide the buffer by tensorParallelSize",
    evidence="production-stack helm/templates/deployment-vllm-multi.yaml, chart 0.1.12; LMCache issue 1399",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare the product with the limit (error) and the request (warning)."""
    for spec in model_specs(launch):
        buffer = spec.buffer("cpuOffloadingBufferSize")
        size, ranks = spec.number(buffer), spec.ranks
        if buffer is None or size is None or size <= 0 or ranks is None:
            continue
        total = size * ranks * GIB
        limit, request = spec.memory("limitMemory"), spec.memory("requestMemory")
        says = f"cpuOffloadingBufferSize is GiB for each rank: {show_number(size)} x {ranks} = {show_bytes(total)}"
        if limit is not None and total >= limit[0]:
            yield RULE.at(buffer.location, f"{says}, and limitMemory is {limit[1]}", severity="error")
        elif request is not None and total >= request[0]:
            yield RULE.at(buffer.location, f"{says}, and requestMemory is {request[1]}")
