"""A production-stack disk buffer without a disk.

The chart sets `LMCACHE_MAX_LOCAL_DISK_SIZE` and no path: nothing goes to disk unless `modelSpec.env` sets `LMCACHE_LOCAL_DISK`.
The size is for each rank.

Bad:

```yaml values.yaml
servingEngineSpec:
  modelSpec:
    - name: m
      repository: lmcache/vllm-openai
      modelURL: Qwen/Qwen3-8B
      vllmConfig: {tensorParallelSize: 2}
      lmcacheConfig:
        enabled: true
        cpuOffloadingBufferSize: "20"
        diskOffloadingBufferSize: "100"
```

Good:

```yaml values.yaml
servingEngineSpec:
  modelSpec:
    - name: m
      repository: lmcache/vllm-openai
      modelURL: Qwen/Qwen3-8B
      vllmConfig: {tensorParallelSize: 2}
      env:
        - {name: LMCACHE_LOCAL_DISK, value: /data/kv}
      lmcacheConfig:
        enabled: true
        cpuOffloadingBufferSize: "20"
        diskOffloadingBufferSize: "100"
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    show_number,
)
from pytest_kvoffload.lint.rule import Rule
from pytest_kvoffload.lint.rules.helm_values import model_specs

RULE = Rule(
    code="KVO922",
    name="helm-disk-without-path",
    severity="warning",
    loose=True,
    products=("vllm", "unknown"),
    versions="production-stack",
    summary="diskOffloadingBufferSize sets no path: nothing goes to disk",
    remedy="set LMCACHE_LOCAL_DISK to a directory in modelSpec.env",
    evidence="production-stack helm/templates/deployment-vllm-multi.yaml:345, chart 0.1.12",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report disk sizes without a path in the spec's own environment."""
    for spec in model_specs(launch):
        buffer = spec.buffer("diskOffloadingBufferSize")
        size = spec.number(buffer)
        if buffer is None or size is None or size <= 0:
            continue
        if "LMCACHE_LOCAL_DISK" in spec.env_names() or launch.env_var("LMCACHE_LOCAL_DISK") is not None:
            continue
        ranks = spec.ranks
        total = f"; it is for each rank, {show_number(size)} x {ranks}" if ranks and ranks > 1 else ""
        yield RULE.at(buffer.location, f"diskOffloadingBufferSize sets no disk path, so nothing goes to disk{total}")
