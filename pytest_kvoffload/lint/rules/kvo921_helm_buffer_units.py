"""A production-stack buffer that is no plain number.

The chart takes `int` of the value: `"20Gi"` and `"0.5"` are 0, no variable is set, and LMCache takes its default of 5 GiB for
each rank. `diskOffloadingBufferSize` is passed on as it is, and `10Gi` then switches LMCache off.

Bad:

```yaml values.yaml
servingEngineSpec:
  modelSpec:
    - name: m
      repository: lmcache/vllm-openai
      modelURL: Qwen/Qwen3-8B
      vllmConfig: {tensorParallelSize: 1}
      lmcacheConfig:
        enabled: true
        cpuOffloadingBufferSize: "20Gi"
```

Good:

```yaml values.yaml
servingEngineSpec:
  modelSpec:
    - name: m
      repository: lmcache/vllm-openai
      modelURL: Qwen/Qwen3-8B
      vllmConfig: {tensorParallelSize: 1}
      lmcacheConfig:
        enabled: true
        cpuOffloadingBufferSize: "20"
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    plain_number,
)
from pytest_kvoffload.lint.rule import Rule
from pytest_kvoffload.lint.rules.helm_values import model_specs

RULE = Rule(
    code="KVO921",
    name="helm-buffer-units",
    severity="error",
    loose=True,
    products=("vllm", "unknown"),
    versions="production-stack",
    summary="A production-stack buffer size with a unit or a fraction counts as 0",
    remedy="write a whole number of GiB without a unit",
    evidence="production-stack helm/templates/deployment-vllm-multi.yaml, chart 0.1.12; LMCache 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report buffer sizes that the chart reads as zero, and disk sizes that LMCache cannot read."""
    for spec in model_specs(launch):
        for key in ("cpuOffloadingBufferSize", "diskOffloadingBufferSize"):
            buffer = spec.buffer(key)
            if buffer is None or buffer.node.kind not in {"string", "number"}:
                continue
            text = str(buffer.node.value).strip()
            number = plain_number(text)
            if not text or isinstance(number, int) or (number is not None and float(number).is_integer()):
                continue
            if key.startswith("cpu"):
                what = "the chart reads it as 0, and LMCache takes its default of 5 GiB for each rank"
            elif number is None:
                what = "LMCache cannot read it and switches itself off"
            else:
                continue
            yield RULE.at(buffer.location, f"{key} {text!r} is no whole number: {what}")
