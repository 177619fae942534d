"""Annotations for GitHub: each finding that is no pass, at the line of the configuration that a change touched."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.config import parse_toml_text
from pytest_kvoffload.errors import ConfigError
from pytest_kvoffload.gate.verdict import Verdict

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.yamltree import YNode

SECTIONS = ("connectors", "engine", "model", "workload")
"""What makes an arm: its connector's table, and the sections that all arms share. Annotated in this order."""
_LEVELS = {"fail": "error", "inconclusive": "warning"}


def annotation_lines(
    verdict: Verdict, *, config: Path | None, connector: str | None, reference: str | None = None
) -> list[str]:
    """Return a GitHub workflow command for each finding that is no pass.

    Args:
        verdict: what was found.
        config: the candidate's configuration; without one the annotations carry no place.
        connector: the candidate's connector; ``None`` is the first one.
        reference: text of the configuration that the reference has; the annotation then stands at the first key that
            differs from it, and names the others. Otherwise it stands at the connector's table.

    Returns:
        An error for a failure and a warning for what is inconclusive.
    """
    place, also = "", ""
    if config is not None:
        root = os.environ.get("GITHUB_WORKSPACE") or str(Path.cwd())
        name = os.path.relpath(config.resolve(), Path(root).resolve())
        text = config.read_text(encoding="utf-8")
        changed = changed_lines(text, reference, connector) if reference is not None else []
        line = changed[0][0] if changed else table_line(text, connector)
        place = f" file={_property(name)},line={line},title=KV offload gate"
        also = "".join(f"\nchanged: {what} (line {number})" for number, what in changed)
    return [
        f"::{_LEVELS[finding.outcome]}{place}::{_data(f'{finding.name}: {finding.text}{also}')}"
        for finding in verdict.findings
        if finding.outcome in _LEVELS
    ]


def changed_lines(text: str, reference: str, connector: str | None) -> list[tuple[int, str]]:
    """Return the 1-based line and the name of every key of an arm that differs between two configurations.

    A key that is new or has another value is found at its own line, one that is gone at the header of its table.
    A reference that cannot be read differs in nothing that could be pointed at.
    """
    try:
        old, new = (_arm(parse_toml_text(t, name="kvoffload.toml", source="")) for t in (reference, text))
    except ConfigError:
        return []
    root = _tree(text)
    found = []
    for path in sorted({*old, *new}, key=lambda p: (SECTIONS.index(p[0]), p)):
        if old.get(path) == new.get(path) or (path[0] == "connectors" and path[1] != connector and connector):
            continue
        line = _line(text, root, path) if path in new else _line(text, root, path[:-1])
        what = "is gone" if path not in new else "is new" if path not in old else "has another value"
        found.append((line or table_line(text, connector), f"{'.'.join(path)} {what}"))
    return found


def table_line(text: str, connector: str | None) -> int:
    """Return the 1-based line of a connector's table in TOML text, or of the first connector; 1 if there is none."""
    root = _tree(text)
    for place in (("tool", "kvoffload", "connectors"), ("connectors",)):
        table = root.get(*place)
        if table is not None and table.pairs:
            names = [key.scalar for key, _ in table.pairs]
            name = connector if connector is not None and connector in names else names[0]
            return _line(text, root, (*place, name)) or 1
    return 1


def _arm(document: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    own = document.get("tool", {}).get("kvoffload", {}) if "tool" in document else document
    return {path: value for path, value in _leaves(own, ()) if path[0] in SECTIONS}


def _leaves(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _tree(text: str) -> YNode:
    from pytest_kvoffload.lint.sources.text import whole
    from pytest_kvoffload.lint.sources.tomltree import read_toml

    return read_toml(whole(text))


def _line(text: str, root: YNode, path: tuple[str, ...]) -> int | None:
    """Return the line of the key at a path (of its header, where it is a table), ``None`` where there is none."""
    for start in (("tool", "kvoffload"), ()):
        table = root.get(*start, *path[:-1])
        for key, _ in table.pairs if table is not None and path else ():
            if key.scalar == path[-1]:
                return text.count("\n", 0, key.at) + 1
    return None


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")
