"""A transfer configuration that names no connector.

Without `kv_connector` nothing is offloaded: vLLM dies with `Connector name is not set in KVTransferConfig`, or, with
the hybrid manager disabled, boots without any connector. With `--kv-offloading-size` the flag names the connector
and the configuration only carries its options.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Node
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO208",
    name="no-connector",
    severity="error",
    summary="The transfer configuration names no connector",
    remedy='add "kv_connector": "OffloadingConnector", or give --kv-offloading-size',
    evidence="vLLM distributed/kv_transfer/kv_connector/factory.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report readable configurations without ``kv_connector``."""
    tree = context.transfer
    if tree is None or context.size is not None or (context.transfer_flags and context.dotted_flags):
        return
    if not context.complete or any(m.node.kind == "unresolved" and not m.key for m in tree.members):
        return
    name = tree.get("kv_connector")
    if name is not None and name.kind not in {"null"} and name.value != "":
        return
    if any(
        key.startswith("kv_con") and key not in {"kv_connector", "kv_connector_extra_config"} for key in _keys(tree)
    ):
        return  # a misspelt kv_connector is reported as an unknown key
    yield RULE.at(tree.location, "no kv_connector here: vLLM does not start, or runs without any tier")


def _keys(tree: Node) -> list[str]:
    return [m.key for m in tree.members if m.key != "kv_connector_module_path"]
