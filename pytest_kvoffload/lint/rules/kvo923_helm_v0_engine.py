"""A production-stack model on the V0 engine.

`vllmConfig.v0: "1"` makes the chart use `LMCacheConnector` and `VLLM_USE_V1=0`: no current vLLM knows either.

Bad:

```yaml values.yaml
servingEngineSpec:
  modelSpec:
    - name: m
      repository: lmcache/vllm-openai
      modelURL: Qwen/Qwen3-8B
      vllmConfig: {v0: 1}
      lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: "20"}
```

Good:

```yaml values.yaml
servingEngineSpec:
  modelSpec:
    - name: m
      repository: lmcache/vllm-openai
      modelURL: Qwen/Qwen3-8B
      vllmConfig: {tensorParallelSize: 1}
      lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: "20"}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule
from pytest_kvoffload.lint.rules.helm_values import model_specs

RULE = Rule(
    code="KVO923",
    name="helm-v0-engine",
    severity="error",
    loose=True,
    products=("vllm", "unknown"),
    versions="production-stack",
    summary="vllmConfig.v0 asks for LMCacheConnector and the V0 engine, which are gone",
    remedy="delete v0",
    evidence="production-stack helm/templates/deployment-vllm-multi.yaml, chart 0.1.12; vLLM factory.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the switch beside an enabled LMCache."""
    for spec in model_specs(launch):
        engine = spec.node.get("vllmConfig")
        member = engine.member("v0") if engine is not None and engine.kind == "object" else None
        if member is not None and str(member.node.value) in {"1", "True", "true"} and spec.enabled:
            yield RULE.at(member.location, "v0 makes the chart use LMCacheConnector, which no current vLLM knows")
