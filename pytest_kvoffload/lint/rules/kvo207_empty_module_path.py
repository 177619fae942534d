"""An empty `kv_connector_module_path`.

vLLM refuses the empty string at boot. Leave the key out to use a registered connector.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_module_path":""}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO207",
    name="empty-module-path",
    severity="error",
    summary="kv_connector_module_path is the empty string: vLLM refuses it",
    remedy="leave kv_connector_module_path out, or name a module",
    evidence="vLLM distributed/kv_transfer/kv_connector/factory.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report empty module paths."""
    for use in context.uses:
        module = use.node.get("kv_connector_module_path")
        if module is not None and module.kind == "string" and module.value == "":
            yield RULE.at(module.location, "an empty kv_connector_module_path is refused at boot")
