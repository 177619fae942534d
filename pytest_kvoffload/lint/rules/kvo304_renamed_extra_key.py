"""A key of `kv_connector_extra_config` that was replaced.

`num_cpu_blocks` was the size of the native tier until 0.13. Since then the size is `cpu_bytes_to_use`: bytes, in total
over the ranks of the engine. Without it the engine does not boot.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"block_size":64,"num_cpu_blocks":1000}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"block_size":64,"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO304",
    name="renamed-extra-key",
    severity="error",
    versions="0.14+",
    summary="num_cpu_blocks and other former names of cpu_bytes_to_use",
    remedy="write cpu_bytes_to_use: bytes, in total over the ranks of the engine",
    evidence="vLLM v1/kv_offload/cpu/spec.py 0.26-0.33; llm-d issues 768 to 770",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report former names of keys."""
    if context.vllm.before("0.14"):
        return
    for use in context.uses:
        if use.vendor or use.extra is None or use.own_spec:
            continue
        renamed = catalog.curated()["renamed_extra"].get(use.name or "", {})
        for member in use.extra.members:
            new = renamed.get(member.key)
            if new is None:
                continue
            lost = "" if use.member(new) or context.size else ": without it the engine does not boot"
            unit = " (bytes, in total over the ranks)" if new == "cpu_bytes_to_use" else ""
            yield RULE.at(
                member.location,
                f"nothing reads {member.key}; {use.name} wants {new}{unit}{lost}",
                remedy=f"write {new}{unit}",
            )
