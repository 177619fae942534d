r"""A value of the wrong type.

The connector's options must be an object, counts must be whole numbers (a fraction is cut off in silence), and
`secondary_tiers` must be a list.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":"{\"cpu_bytes_to_use\":8589934592}"}'
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
    code="KVO309",
    name="wrong-type",
    severity="error",
    summary="A value of the wrong type: options that are no object, tiers that are no list, a fraction of a block",
    remedy="write a value of the type that is read",
    evidence="vLLM config/kv_transfer.py, tiering/spec.py, offloading/config.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report values whose type vLLM refuses or silently changes."""
    for use in context.uses:
        options = use.node.get("kv_connector_extra_config")
        if options is not None and options.kind not in {"object", "null", "unresolved"}:
            yield RULE.at(options.location, f"kv_connector_extra_config is {_kind(options)}: it must be an object")
        if use.vendor or use.own_spec:
            continue
        keys = use.entry.get("extra", {})
        for member in use.extra.members if use.extra is not None else ():
            kind, node = keys.get(member.key, {}).get("type"), member.node
            if node.kind in {"unresolved", "null"}:
                continue
            if kind == "list" and node.kind != "array":
                yield RULE.at(
                    node.location, f"{member.key} is {_kind(node)}: it must be a list", remedy="write [ ... ]"
                )
            elif kind in {"int", "bytes"} and node.kind in {"array", "object", "boolean"}:
                yield RULE.at(node.location, f"{member.key} is {_kind(node)}: it must be a number")
            elif kind == "int" and isinstance(node.value, float) and not float(node.value).is_integer():
                yield RULE.at(
                    node.location,
                    f"{member.key} {node.raw or node.value} is cut to {int(node.value)} in silence",
                    severity="warning",
                )


def _kind(node: Node) -> str:
    names = {
        "string": "a string",
        "number": "a number",
        "boolean": "a boolean",
        "array": "a list",
        "object": "an object",
    }
    return names.get(node.kind, node.kind)
