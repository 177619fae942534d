"""YAML and JSON texts to the neutral :class:`Node` tree."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from pytest_kvoffload.lint.model import Member, Node
from pytest_kvoffload.lint.sources.grammar import parse
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, Source, constant, join
from pytest_kvoffload.lint.sources.yamltree import YNode

_KINDS = {
    "tag:yaml.org,2002:int": "number",
    "tag:yaml.org,2002:float": "number",
    "tag:yaml.org,2002:bool": "boolean",
    "tag:yaml.org,2002:null": "null",
}
_BARE_NUMBER = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_POWERS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def from_yaml(source: Source, node: YNode, budget: int = 20_000) -> Node:
    """Convert a YAML node; aliases beyond the budget of nodes become ``unresolved``."""
    left = [budget]
    return _from_yaml(source, node, left, 0)


def _from_yaml(source: Source, node: YNode, left: list[int], depth: int) -> Node:
    location = source.location(node.at)
    left[0] -= 1
    if left[0] < 0 or depth > 40:
        return Node(kind="unresolved", location=location)
    raw = source.text[node.at : max(node.end, node.at)].rstrip() if node.kind == "scalar" else ""
    if node.kind == "map":
        members = []
        for key, value in node.members():
            child = _from_yaml(source, value, left, depth + 1)
            members.append(Member(key=key.scalar, location=source.location(key.at), node=child))
        return Node(kind="object", location=location, members=tuple(members))
    if node.kind == "seq":
        items = tuple(_from_yaml(source, item, left, depth + 1) for item in node.items)
        return Node(kind="array", location=location, items=items)
    if HOLE in node.scalar:
        return Node(kind="unresolved", location=location, raw=raw)
    kind = _KINDS.get(node.tag, "string")
    if kind == "string":
        return Node(kind="string", location=location, value=node.scalar, raw=raw)
    if kind == "null":
        return Node(kind="null", location=location, raw=raw)
    value = yaml_scalar(node)
    if kind == "boolean" and isinstance(value, bool):
        return Node(kind="boolean", location=location, value=value, raw=raw)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Node(kind="number", location=location, value=value, raw=raw)
    return Node(kind="string", location=location, value=node.scalar, raw=raw)


def yaml_scalar(node: YNode) -> Any:
    """Return the Python value of a plain YAML scalar (the text itself where the tag's constructor refuses)."""
    text = node.scalar
    if len(text) > 400:
        return text
    constructor = yaml.constructor.SafeConstructor()
    try:
        return constructor.construct_object(yaml.ScalarNode(node.tag, text), deep=True)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, OverflowError, IndexError):
        return text


def from_json(source: Source, text: Mapped) -> tuple[Node, str | None, int]:
    """Parse JSON as vLLM reads it (bare ``8G`` allowed). Returns the tree, the error text and the error's offset.

    With an error, the tree holds what could still be read, so that a rule may look at it with care.
    """
    if text.text.strip() == HOLE:
        return Node(kind="unresolved", location=source.location(text.at), raw=HOLE), None, text.at
    expanded, raws = _expand(text)
    error: str | None = None
    where = text.at
    try:
        json.loads(expanded.text, parse_constant=lambda name: name)
    except json.JSONDecodeError as failure:
        error = failure.msg
        where = expanded.offset(failure.pos)
    except (RecursionError, ValueError) as failure:
        error = "nested too deeply" if isinstance(failure, RecursionError) else str(failure)
        return Node(kind="unresolved", location=source.location(text.at)), error, where
    return _json_tree(source, expanded, raws), error, where


def _expand(text: Mapped) -> tuple[Mapped, dict[int, str]]:
    """Replace bare ``8G`` numbers and bare holes by legal JSON, keeping places; ``raws``: outer offset to raw text."""
    parts: list[Mapped] = []
    raws: dict[int, str] = {}
    position = 0
    spans = [m.span() for m in _STRING.finditer(text.text)]
    spans.append((len(text), len(text)))
    for start, stop in spans:
        between = text[position:start]
        inner = 0
        for match in re.finditer(f"{_BARE_NUMBER.pattern}|{HOLE}+[^\\s,}}\\]]*", between.text):
            parts.append(between[inner : match.start()])
            at = between.offset(match.start())
            token = match.group()
            if HOLE in token:
                parts.append(constant(json.dumps(HOLE, ensure_ascii=False), at))
            else:
                parts.append(constant(str(int(float(token[:-1]) * _POWERS[token[-1]])), at))
            raws[at] = token
            inner = match.end()
        parts.append(between[inner:])
        parts.append(text[start:stop])
        position = stop
    return join(parts, at=text.at), raws


def _json_tree(source: Source, text: Mapped, raws: dict[int, str]) -> Node:
    data = text.text.encode("utf-8", "replace")
    index = char_index(text.text, data)
    _tree, root = parse("json", data)
    node: Any = next((c for c in root.named_children if c.type not in ("comment", "ERROR")), root)
    return _convert(source, text, node, index, raws, 0)


def char_index(text: str, data: bytes) -> list[int] | None:
    """Return byte offset to character offset, ``None`` when they are the same."""
    if len(text) == len(data):
        return None
    table: list[int] = []
    for position, char in enumerate(text):
        table.extend([position] * len(char.encode("utf-8", "replace")))
    table.append(len(text))
    return table


def _convert(
    source: Source, text: Mapped, node: Any, index: list[int] | None, raws: dict[int, str], depth: int
) -> Node:
    start = index[node.start_byte] if index else node.start_byte
    stop = index[node.end_byte] if index else node.end_byte
    at = text.offset(start)
    location = source.location(at)
    raw = raws.get(at, text.text[start:stop])
    kind = node.type
    if depth > 100:
        return Node(kind="unresolved", location=location)
    if kind == "object":
        members = []
        for pair in node.named_children:
            if pair.type != "pair":
                continue
            key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
            if key is None or value is None:
                continue
            name = _convert(source, text, key, index, raws, depth + 1)
            child = _convert(source, text, value, index, raws, depth + 1)
            members.append(
                Member(key=str(name.value if name.value is not None else ""), location=name.location, node=child)
            )
        return Node(kind="object", location=location, members=tuple(members), raw=raw)
    if kind == "array":
        items = tuple(
            _convert(source, text, child, index, raws, depth + 1)
            for child in node.named_children
            if child.type not in ("comment", "ERROR")
        )
        return Node(kind="array", location=location, items=items, raw=raw)
    if HOLE in raw:
        return Node(kind="unresolved", location=location, raw=raw)
    try:
        value = json.loads(text.text[start:stop])
    except (ValueError, RecursionError):
        return Node(kind="unresolved", location=location, raw=raw)
    return scalar_node(value, location, raw)


def scalar_node(value: object, location: Any, raw: str) -> Node:
    """Wrap a Python scalar."""
    if isinstance(value, bool):
        return Node(kind="boolean", location=location, value=value, raw=raw)
    if isinstance(value, (int, float)):
        return Node(kind="number", location=location, value=value, raw=raw)
    if value is None:
        return Node(kind="null", location=location, raw=raw)
    return Node(kind="string", location=location, value=str(value), raw=raw)
