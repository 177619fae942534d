"""A boolean written as a string.

vLLM passes the value through `bool()`: the string `"false"` is true. With dotted flags only `false` and `true` in
lower case are booleans; `False` stays a string and is true as well.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"lazy_offload":"false"}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"lazy_offload":false}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Edit, Launch, Node
from pytest_kvoffload.lint.rule import Rule

FALSE = {"false", "no", "off", "0", "f", "n", "none", "null", "disabled"}
RULE = Rule(
    code="KVO307",
    name="string-boolean",
    severity="error",
    fixable=True,
    summary='The string "false" is true',
    remedy="write false or true without quotes",
    evidence="vLLM v1/kv_offload/base.py, simple_cpu_offload_connector.py 0.26-0.33, measured; vLLM issue 52656",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report strings where a boolean is read with ``bool()``."""
    for use in context.uses:
        if use.vendor:
            continue
        keys = use.entry.get("extra", {})
        for member in use.extra.members if use.extra is not None else ():
            if keys.get(member.key, {}).get("type") != "bool" or member.node.kind != "string":
                continue
            text = str(member.node.value)
            if not text:
                continue  # the empty string is false
            negative = text.strip().lower() in FALSE
            yield RULE.at(
                member.node.location,
                f"the string {text!r} is true here" + (f": {member.key} is switched on" if negative else ""),
                severity=None if negative else "note",
                remedy=f"write {'false' if negative else 'true'}, without quotes and in lower case",
                fix=_fix(document, member.node, "false" if negative else "true"),
            )
        permute = use.node.get("enable_permute_local_kv")
        if permute is not None and permute.kind == "string" and str(permute.value).lower() in {"false", "true"}:
            yield RULE.at(permute.location, f"{permute.value!r} is a string here", severity="note")


def _fix(document: Document, node: Node, new: str) -> tuple[Edit, ...]:
    lines = document.text.splitlines()
    line, column = node.location.line, node.location.column - 1
    if not 1 <= line <= len(lines) or not lines[line - 1].startswith(f'"{node.value}"', column):
        return ()
    end = column + 1 + len(str(node.value)) + 2
    return (Edit(location=node.location, end_line=line, end_column=end, replacement=new),)
