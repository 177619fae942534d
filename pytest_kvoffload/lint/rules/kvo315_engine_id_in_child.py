"""An `engine_id` in a child of MultiConnector.

The children take the parent's `engine_id`; one of their own is a `TypeError` at boot. A fixed `engine_id` on the top
level is shared by every copy of the launch: two servers of one host then map the same `/dev/shm` file.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both","engine_id":"a"}]}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO315",
    name="engine-id-in-child",
    severity="error",
    summary="engine_id in a child of MultiConnector ends the boot",
    remedy="delete engine_id from the child",
    evidence="vLLM distributed/kv_transfer/kv_connector/v1/multi_connector.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report children with an ``engine_id``."""
    for use in context.uses:
        member = use.node.member("engine_id")
        if use.child and member is not None and member.node.kind != "null":
            yield RULE.at(member.location, "a child of MultiConnector with its own engine_id is a TypeError at boot")
