"""A key that is written twice in the same mapping.

YAML and JSON parsers keep the last one and say nothing: the first value is lost.

Bad:

```yaml serve.yaml
model: Qwen/Qwen3-8B
kv-offloading-size: 40
max-model-len: 8192
kv-offloading-size: 4
```

Good:

```yaml serve.yaml
model: Qwen/Qwen3-8B
kv-offloading-size: 4
max-model-len: 8192
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Member, Node
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO506",
    name="duplicate-key",
    severity="error",
    summary="A key written twice: the first value is lost",
    remedy="keep one of the two",
    evidence="PyYAML and json keep the last of duplicate keys",
)
RELEVANT = re.compile(r"kv|offload|lmcache|connector|cache|env|args|command|shm|memory|limits|size|vllm", re.IGNORECASE)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report duplicates inside the connector's configuration."""
    if context.transfer is not None:
        yield from _inside(context.transfer)


def check_document(document: Document) -> Iterator[Diagnostic]:
    """Report duplicates that the YAML reader found."""
    for location, text in document.problems:
        if "duplicate" in text.lower():
            yield RULE.at(location, text, severity=None if RELEVANT.search(text) else "warning")


def _inside(node: Node) -> Iterator[Diagnostic]:
    seen: dict[str, Member] = {}
    for member in node.members:
        if member.key in seen and member.key:
            yield RULE.at(member.location, f"{member.key!r} is written twice: the first value is lost")
        seen[member.key] = member
        yield from _inside(member.node)
    for item in node.items:
        yield from _inside(item)
