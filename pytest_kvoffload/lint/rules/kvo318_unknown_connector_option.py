"""An option or a kind that `kvoffload.toml` does not know.

Each `[connectors.NAME]` has the options of its kind; any other is refused before a server boots, and so is a kind that
does not exist. What is meant for vLLM or LMCache itself goes into `extra_config`, `args` or `env`, which are passed on.

Bad:

```toml kvoffload.toml
[connectors.host]
kind = "native"
size_gb = 8
```

Good:

```toml kvoffload.toml
[connectors.host]
kind = "native"
size_gib = 8
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS, TABLE_KEYS
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Node
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO318",
    name="unknown-connector-option",
    severity="error",
    summary="an option or a kind of connector that kvoffload.toml does not know",
    remedy="use an option of that kind: docs/reference.md lists them",
    evidence="pytest_kvoffload/catalog/connector_options.py, which a launch reads too",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report what a launch of this connector would refuse by name."""
    config = launch.config("kvoffload-connector")
    if config is None:
        return
    if config.node.member("kind") is None:
        yield RULE.at(config.location, "this connector has no kind: it is refused", remedy=_one_of(KIND_OPTIONS))
        return
    yield from _table(config.node, TABLE_KEYS)


def _table(node: Node, besides: tuple[str, ...]) -> Iterator[Diagnostic]:
    kind = node.get("kind")
    if kind is None or kind.kind != "string":
        return
    if kind.value not in KIND_OPTIONS:
        hint = did_you_mean(str(kind.value), KIND_OPTIONS)
        yield RULE.at(kind.location, f"there is no kind {kind.value!r}{hint}", remedy=_one_of(KIND_OPTIONS))
        return
    known = KIND_OPTIONS[kind.value].names
    for member in node.members:
        if member.key not in known and member.key not in besides:
            hint = did_you_mean(member.key, sorted(known))
            yield RULE.at(
                member.location,
                f"a connector of kind {kind.value!r} has no option {member.key!r}{hint}: it is refused",
                remedy=_one_of(known) if known else f"a connector of kind {kind.value!r} takes no options",
            )
    children = node.get("connectors") if kind.value == "multi" else None
    for child in children.items if children is not None else ():
        if child.kind == "object":
            yield from _table(child, ("kind",))


def _one_of(names: Iterable[str]) -> str:
    return "use one of " + ", ".join(sorted(names))
