"""Disk options of SimpleCPUOffloadConnector that do nothing, or lack their path.

With `kv_offload_backend` `cpu` (the default) the `disk_*` keys are ignored; with `disk` the key `disk_path` is required.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"disk_path":"/kv"}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"kv_offload_backend":"disk","disk_path":"/kv"}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

DISK_KEYS = ("disk_path", "disk_capacity_bytes", "disk_buffer_slots", "use_page_cache")
RULE = Rule(
    code="KVO317",
    name="simple-disk",
    severity="error",
    summary="disk_* keys without the disk backend, or the disk backend without disk_path",
    remedy='write "kv_offload_backend": "disk" together with "disk_path"',
    versions="0.28+",
    evidence="vLLM simple_cpu_offload_connector.py 0.28-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report halves of the disk configuration."""
    for use in context.uses:
        if use.name != "SimpleCPUOffloadConnector" or use.vendor or context.vllm.before("0.28"):
            continue
        backend = use.member("kv_offload_backend")
        word = backend.node.value if backend is not None and backend.node.kind == "string" else "cpu"
        if backend is not None and backend.node.kind == "unresolved":
            continue
        if word == "cpu":
            for key in DISK_KEYS:
                member = use.member(key)
                if member is not None:
                    yield RULE.at(
                        member.location, f"{key} is ignored while kv_offload_backend is cpu: nothing goes to disk"
                    )
        elif word == "disk" and backend is not None and use.option("disk_path") is None:
            yield RULE.at(backend.node.location, "the disk backend needs disk_path", remedy='add "disk_path": "/path"')
