"""A connector name of an older vLLM.

`LMCacheConnector` belonged to the V0 engine, `SharedStorageConnector` was renamed `ExampleConnector`. No vLLM from
0.26 on knows them, and the engine does not start.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnector","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Edit, Launch, Location
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO202",
    name="retired-connector",
    severity="error",
    fixable=True,
    summary="The connector was renamed or went away with the V0 engine",
    remedy="write the name that replaced it",
    evidence="vLLM distributed/kv_transfer/kv_connector/factory.py 0.26-0.33; LMCache 0.5.6",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report names that were registered once."""
    retired = catalog.curated()["retired"]
    if context.vllm.before("0.20") or context.from_chart:
        return
    for use in context.uses:
        if use.name is None or use.name not in retired or use.vendor:
            continue
        entry = retired[use.name]
        fix = replace_text(document, use.location, use.name, entry["use"])
        yield RULE.at(
            use.location,
            f"vLLM no longer knows {use.name}: {entry['why']}",
            remedy=f"write {entry['use']}",
            fix=fix,
        )


def replace_text(document: Document, location: Location, old: str, new: str) -> tuple[Edit, ...]:
    """Return the edit that replaces ``old`` where it stands at or after ``location`` on its line."""
    lines = document.text.splitlines()
    if not 1 <= location.line <= len(lines):
        return ()
    column = lines[location.line - 1].find(old, max(location.column - 1, 0))
    if column < 0:
        return ()
    start = Location(path=location.path, line=location.line, column=column + 1)
    return (Edit(location=start, end_line=location.line, end_column=column + 1 + len(old), replacement=new),)
