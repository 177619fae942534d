"""A tier whose size nobody chose.

`SimpleCPUOffloadConnector` without `cpu_bytes_to_use` takes 8 GiB in total; LMCache without a size takes 5 GiB for each
rank.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":34359738368}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO609",
    name="default-size",
    severity="note",
    summary="A tier without a size: 8 GiB (simple connector), 5 GiB for each rank (LMCache)",
    remedy="give the size that the workload needs (kvoffload size computes it)",
    evidence="vLLM simple_cpu_offload_connector.py 0.26-0.33; LMCache config.py 0.5.6",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Note sizes left to the default."""
    if context.size is not None or not context.complete:
        return
    for use in context.uses:
        simple = use.name == "SimpleCPUOffloadConnector" and not use.vendor
        if simple and use.option("cpu_bytes_to_use") is None and use.option("cpu_bytes_to_use_per_rank") is None:
            yield RULE.at(use.location, "no cpu_bytes_to_use: the tier is 8 GiB in total")
        sized = "max_local_cpu_size" in context.lmcache_settings or context.env_set("LMCACHE_CONFIG_FILE")
        in_process = use.name == "LMCacheConnectorV1" and not use.vendor
        if in_process and not sized and not context.disaggregated and launch.env_complete:
            yield RULE.at(use.location, "no LMCACHE_MAX_LOCAL_CPU_SIZE: the tier is 5 GiB for each rank")
