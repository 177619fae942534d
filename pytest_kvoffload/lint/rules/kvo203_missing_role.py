"""A connector without `kv_role`.

vLLM refuses the whole configuration: `Please specify kv_role when kv_connector is set`. For a tier of one instance
(store and load) the role is `kv_both`.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1"}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Edit, Launch, Location, Member
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO203",
    name="missing-role",
    severity="error",
    fixable=True,
    summary="kv_connector is set and kv_role is not: vLLM does not start",
    remedy='add "kv_role": "kv_both" (kv_producer and kv_consumer are for disaggregated prefill)',
    evidence="vLLM config/kv_transfer.py __post_init__ 0.26-0.33, measured; vLLM issue 19448",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report connectors that have no role. ``--kv-offloading-size`` is applied after the refusal."""
    for use in context.uses:
        member = use.node.member("kv_connector")
        if member is None or member.node.kind == "null" or (context.dotted_flags and context.transfer_flags):
            continue
        role = use.node.get("kv_role")
        if role is not None and role.kind != "null":
            continue
        yield RULE.at(
            use.location,
            f"{use.name or 'the connector'} has no kv_role: vLLM refuses the configuration at boot",
            fix=_fix(document, member),
        )


def _fix(document: Document, member: Member) -> tuple[Edit, ...]:
    lines = document.text.splitlines()
    line, column = member.location.line, member.location.column - 1
    if not 1 <= line <= len(lines):
        return ()
    quote = lines[line - 1][column : column + 1]
    text = f'"{member.node.value}"'
    end = lines[line - 1].find(text, column)
    if quote != '"' or end < 0:
        return ()
    at = end + len(text) + 1
    start = Location(path=member.location.path, line=line, column=at)
    return (Edit(location=start, end_line=line, end_column=at, replacement=',"kv_role":"kv_both"'),)
