"""The native tier without its size.

`OffloadingConnector` without `cpu_bytes_to_use` dies at boot with `cpu_bytes_to_use must be specified in
kv_connector_extra_config`; 0 counts as missing. `SimpleCPUOffloadConnector` silently takes 8 GiB.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO305",
    name="missing-size",
    severity="error",
    versions="0.14+",
    summary="OffloadingConnector without cpu_bytes_to_use does not boot",
    remedy='add "cpu_bytes_to_use": bytes, in total over the ranks (8589934592 is 8 GiB)',
    evidence="vLLM v1/kv_offload/cpu/spec.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report native connectors that have no size from anywhere."""
    if context.size is not None or context.vllm.before("0.14") or not context.complete:
        return
    if context.transfer_flags and context.dotted_flags:
        return
    renamed = catalog.curated()["renamed_extra"]["OffloadingConnector"]
    for use in context.uses:
        if use.name != "OffloadingConnector" or use.vendor or use.own_spec:
            continue
        extra = use.node.get("kv_connector_extra_config")
        if extra is not None and extra.kind not in {"object", "null"}:
            continue
        if any(
            m.key in renamed or (m.node.kind == "unresolved" and not m.key) for m in (extra.members if extra else ())
        ):
            continue
        near = [
            m.key for m in (extra.members if extra else ()) if did_you_mean(m.key, ["cpu_bytes_to_use"], cutoff=0.75)
        ]
        size = use.option("cpu_bytes_to_use")
        if size is None and not near:
            yield RULE.at(use.location, "OffloadingConnector has no cpu_bytes_to_use: the engine does not boot")
        elif size is not None and size.kind == "null":
            yield RULE.at(size.location, "cpu_bytes_to_use is null: the engine does not boot")
