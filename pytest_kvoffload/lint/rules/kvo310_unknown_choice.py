"""A word that is none of the legal choices.

`eviction_policy` is `lru` or `arc`, in lower case; `spec_name` is `CPUOffloadingSpec` or `TieringOffloadingSpec`, unless a
module is named; `kv_load_failure_policy` is `fail` or `recompute`; `--kv-offloading-backend` is `native` or `lmcache`.
Everything else ends the boot.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"eviction_policy":"LRU"}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"eviction_policy":"lru"}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "OffloadingConnector": {
        "eviction_policy": ("lru", "arc"),
        "spec_name": ("CPUOffloadingSpec", "TieringOffloadingSpec"),
    },
    "SimpleCPUOffloadConnector": {"kv_offload_backend": ("cpu", "disk")},
}
BACKENDS = ("native", "lmcache")
RULE = Rule(
    code="KVO310",
    name="unknown-choice",
    severity="error",
    summary="A policy, spec or backend that does not exist: vLLM does not start",
    remedy="write one of the legal words",
    evidence="vLLM v1/kv_offload/cpu/manager.py, factory.py, config/kv_transfer.py, config/cache.py; measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report illegal words."""
    backend = known_text(context.backend_flag.value) if context.backend_flag is not None else None
    if backend is not None and backend not in BACKENDS and context.backend_flag is not None:
        yield RULE.at(
            context.backend_flag.location,
            f"--kv-offloading-backend {backend!r} does not exist{did_you_mean(backend, BACKENDS)}",
            remedy="write native or lmcache",
        )
    for use in context.uses:
        policy = use.node.get("kv_load_failure_policy")
        if policy is not None and policy.kind == "string" and policy.value not in {"fail", "recompute"}:
            yield RULE.at(
                policy.location, f"kv_load_failure_policy {policy.value!r} is refused", remedy="write fail or recompute"
            )
        if use.vendor or use.own_spec:
            continue
        for key, words in CHOICES.get(use.name or "", {}).items():
            node = use.option(key)
            if node is None or node.kind != "string" or node.value in words:
                continue
            if key == "eviction_policy" and use.option("cache_policy_module_path") is not None:
                continue
            hint = did_you_mean(str(node.value), words, cutoff=0.3) or did_you_mean(str(node.value).lower(), words)
            yield RULE.at(
                node.location,
                f"{key} {node.value!r} does not exist: the engine does not boot{hint}",
                remedy=f"write one of: {', '.join(words)}",
            )
