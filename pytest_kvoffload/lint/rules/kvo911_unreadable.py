"""A file that names a KV setting and cannot be parsed.

The reader met broken YAML, JSON or TOML. What comes after the error was not checked.

Bad:

```yaml serve.yaml
kv-transfer-config: {kv_connector: "OffloadingConnector"
```

Good:

```yaml serve.yaml
kv-offloading-size: 8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.model import Diagnostic, Document
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO911",
    name="unreadable",
    severity="warning",
    confidence="medium",
    summary="The text cannot be parsed, so what follows was not checked",
    remedy="repair the syntax",
    evidence="the format's own parser",
)


def check_document(document: Document) -> Iterator[Diagnostic]:
    """Report the problems that other rules do not claim."""
    for location, text in document.problems:
        lower = text.lower()
        if not (
            "backslash" in lower or "continu" in lower or "not part of the command" in lower or "duplicate" in lower
        ):
            yield RULE.at(location, text)
