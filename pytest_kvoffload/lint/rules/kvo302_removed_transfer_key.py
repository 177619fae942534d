"""A key of `--kv-transfer-config` that 0.32 removed.

`kv_rank`, `kv_parallel_size`, `kv_ip` and `kv_buffer_size` were accepted and unused until 0.31. From 0.32 each one is an
unexpected keyword argument and the server does not start.

Bad:

```sh serve.sh
# image: v0.32.0
docker run vllm/vllm-openai:v0.32.0 --model m --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_size":1e9}'
```

Good:

```sh serve.sh
docker run vllm/vllm-openai:v0.32.0 --model m --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

REMOVED = ("kv_rank", "kv_parallel_size", "kv_ip", "kv_buffer_size")
RULE = Rule(
    code="KVO302",
    name="removed-transfer-key",
    severity="error",
    summary="kv_rank, kv_parallel_size, kv_ip and kv_buffer_size are refused from 0.32 on",
    remedy="delete the key: nothing read it before either",
    versions="0.32+",
    evidence="vLLM config/kv_transfer.py 0.31 and 0.32, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report removed keys: an error where they are refused, a warning where the version is unknown."""
    refused = context.vllm.at_least("0.32")
    for use in context.uses:
        for member in use.node.members:
            if member.key not in REMOVED or use.vendor:
                continue
            if refused:
                yield RULE.at(member.location, f"vLLM {context.vllm.text} refuses {member.key}: removed in 0.32")
            else:
                yield RULE.at(
                    member.location,
                    f"{member.key} is unused, and refused at boot from vLLM 0.32 on",
                    severity="warning" if refused is None else "note",
                )
