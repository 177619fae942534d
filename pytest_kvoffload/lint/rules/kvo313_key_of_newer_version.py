"""A key that the running version does not read yet.

A key of `kv_connector_extra_config` that a later vLLM introduced is dropped without a word by an earlier one.

Bad:

```sh serve.sh
docker run --ipc=host vllm/vllm-openai:v0.27.1 --model m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"kv_offload_backend":"disk","disk_path":"/kv"}}'
```

Good:

```sh serve.sh
docker run --ipc=host vllm/vllm-openai:v0.28.0 --model m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"kv_offload_backend":"disk","disk_path":"/kv"}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO313",
    name="key-of-newer-version",
    severity="error",
    summary="A key that the running vLLM does not read yet",
    remedy="upgrade vLLM or drop the key",
    versions="see the key",
    evidence="vLLM offloading and simple connector sources, compared 0.26 to 0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report keys whose first version is above the known one."""
    if context.vllm.exact is None:
        return
    for use in context.uses:
        if use.vendor or use.own_spec:
            continue
        for member in use.extra.members if use.extra is not None else ():
            since = use.entry.get("extra", {}).get(member.key, {}).get("since")
            if since is not None and context.vllm.before(since):
                yield RULE.at(
                    member.location,
                    f"vLLM {context.vllm.text} does not read {member.key}: it came with {since}",
                    versions=f"{since}+",
                )
