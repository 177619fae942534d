"""A MultiConnector without children.

`MultiConnector` needs a non-empty list `connectors` in its extra configuration.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{}}'
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
    code="KVO316",
    name="multi-without-children",
    severity="error",
    summary="MultiConnector without a list of connectors",
    remedy='add "connectors": [ {...}, {...} ] to kv_connector_extra_config',
    evidence="vLLM distributed/kv_transfer/kv_connector/v1/multi_connector.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report missing and empty lists."""
    if context.size is not None or (context.transfer_flags and context.dotted_flags):
        return
    for use in context.uses:
        if use.name != "MultiConnector" or use.vendor:
            continue
        options = use.node.get("kv_connector_extra_config")
        if options is not None and options.kind not in {"object", "null"}:
            continue
        children = use.option("connectors")
        if children is None or (children.kind == "array" and not children.items):
            yield RULE.at(use.location, "MultiConnector has no connectors: nothing is transferred or stored")
