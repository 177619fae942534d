"""YAML text to a tree with places, built from PyYAML's event stream.

The event stream is used instead of ``compose`` because it has no recursion (deep nesting), keeps what was read before
a syntax error, and leaves duplicates and aliases visible. Aliases are shared, never copied: a "billion laughs" file
costs what it is long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from pytest_kvoffload.lint.sources.text import HOLE, Mapped, align

MAX_DEPTH = 60
MAX_NODES = 200_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.SafeLoader("")


@dataclass(slots=True, eq=False)
class YNode:
    """One YAML node. ``pairs`` keeps the file's order and duplicates; merges (``<<``) are looked through by ``get``."""

    kind: str
    """``map``, ``seq`` or ``scalar``."""
    text: Mapped
    """The decoded value of a scalar; for collections the place where they begin (empty text)."""
    end: int = 0
    tag: str = ""
    quoted: bool = False
    style: str = ""
    items: list[YNode] = field(default_factory=list)
    pairs: list[tuple[YNode, YNode]] = field(default_factory=list)
    anchor: str = ""

    @property
    def at(self) -> int:
        """Outer offset where the node begins."""
        return self.text.at

    @property
    def scalar(self) -> str:
        """The decoded text of a scalar, ``""`` for anything else."""
        return self.text.text if self.kind == "scalar" else ""

    @property
    def is_null(self) -> bool:
        """Whether it is a plain null."""
        return self.kind == "scalar" and self.tag == "tag:yaml.org,2002:null"

    def members(self) -> Iterator[tuple[YNode, YNode]]:
        """Yield the pairs, merged mappings first, so that own keys come last and win."""
        yield from _members(self, 0)

    def get(self, *path: str) -> YNode | None:
        """Return the node under the keys, or ``None``."""
        node: YNode | None = self
        for key in path:
            if node is None or node.kind != "map":
                return None
            found = None
            for name, value in node.members():
                if name.scalar == key:
                    found = value
            node = found
        return node

    def string(self, *path: str) -> str:
        """Return the scalar text under the keys, or ``""``."""
        node = self.get(*path)
        return node.scalar if node is not None else ""


def _members(node: YNode, depth: int) -> Iterator[tuple[YNode, YNode]]:
    if node.kind != "map" or depth > 8:
        return
    for key, value in node.pairs:
        if key.scalar == "<<" and not key.quoted:
            sources = value.items if value.kind == "seq" else [value]
            for source in sources[:16]:
                if source is not node:
                    yield from _members(source, depth + 1)
    for key, value in node.pairs:
        if not (key.scalar == "<<" and not key.quoted):
            yield key, value


@dataclass(frozen=True, slots=True)
class YamlResult:
    """Documents read, and what stopped the reading: (offset, message)."""

    documents: tuple[YNode, ...]
    error: tuple[int, str] | None = None
    duplicates: tuple[tuple[YNode, YNode], ...] = ()
    """(first key, later key) of the same mapping."""


def read_yaml(text: Mapped) -> YamlResult:
    """Parse all documents of ``text``. Never raises on bad input."""
    documents: list[YNode] = []
    stack: list[YNode] = []
    pending: list[YNode | None] = []
    anchors: dict[str, YNode] = {}
    error: tuple[int, str] | None = None
    duplicates: list[tuple[YNode, YNode]] = []
    count = 0

    def add(node: YNode) -> None:
        if not stack:
            documents.append(node)
            return
        parent = stack[-1]
        if parent.kind == "seq":
            parent.items.append(node)
        elif pending[-1] is None:
            pending[-1] = node
        else:
            parent.pairs.append((pending[-1], node))
            pending[-1] = None

    clean = _printable(text.text)
    try:
        events: Any = yaml.parse(clean, Loader=_LOADER)
        for event in events:
            start, stop = int(event.start_mark.index), int(event.end_mark.index)
            count += 1
            if count > MAX_NODES:
                error = (text.offset(start), "the YAML has too many nodes to be read")
                break
            if isinstance(event, yaml.ScalarEvent):
                add(_scalar(text, event, anchors))
            elif isinstance(event, yaml.AliasEvent):
                known = anchors.get(event.anchor or "")
                if known is None or known in stack:
                    known = YNode("scalar", Mapped("", (), text.offset(start)))
                add(known)
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                kind = "map" if isinstance(event, yaml.MappingStartEvent) else "seq"
                node = YNode(kind, Mapped("", (), text.offset(start)), tag=event.tag or "")
                if event.anchor:
                    anchors[event.anchor] = node
                    node.anchor = event.anchor
                add(node)
                stack.append(node)
                pending.append(None)
                if len(stack) > MAX_DEPTH:
                    error = (text.offset(start), "the YAML is nested too deeply to be read")
                    break
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                node = stack.pop()
                pending.pop()
                node.end = text.offset(stop)
                duplicates.extend(_duplicates(node))
            elif isinstance(event, yaml.DocumentStartEvent):
                anchors = {}
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark or failure.context_mark
        error = (text.offset(_index(clean, mark)), failure.problem or failure.context or "not legal YAML")
    except (yaml.YAMLError, UnicodeError, ValueError) as failure:
        error = (text.at, str(failure).splitlines()[0] if str(failure) else "not legal YAML")
    while stack:
        stack.pop().end = text.end
    return YamlResult(tuple(documents), error, tuple(duplicates))


def _duplicates(node: YNode) -> Iterator[tuple[YNode, YNode]]:
    if node.kind != "map":
        return
    seen: dict[str, YNode] = {}
    for key, _ in node.pairs:
        if key.kind == "scalar" and key.scalar != "<<" and HOLE not in key.scalar:
            if key.scalar in seen:
                yield seen[key.scalar], key
            seen[key.scalar] = key


def _index(text: str, mark: Any) -> int:
    index = getattr(mark, "index", None)
    if isinstance(index, int) and index > 0:
        return index
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: mark.line]) + int(mark.column) if mark is not None else 0


def _printable(text: str) -> str:
    """Replace what YAML calls non-printable, one for one, so that one odd byte does not hide a file."""
    if text.isascii() and text.isprintable():
        return text
    return yaml.reader.Reader.NON_PRINTABLE.sub("?", text)


def _scalar(text: Mapped, event: Any, anchors: dict[str, YNode]) -> YNode:
    start, stop = event.start_mark.index, event.end_mark.index
    raw = text[start:stop]
    value: str = event.value
    style = event.style or ""
    if style in ("|", ">"):
        head = raw.text.find("\n")
        mapped = align(raw[head + 1 :] if head >= 0 else raw, value)
    elif style == '"':
        mapped = align(raw[1:], value, escapes=True)
    elif style == "'":
        mapped = align(raw[1:], value, skip="'")
    elif raw.text == value:
        mapped = raw
    else:
        mapped = align(raw, value)
    tag = event.tag
    if not tag:
        tag = "tag:yaml.org,2002:str"
        if not style or style == "":
            tag = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))
    # A value keeps the place of its quote, a literal block the place of its first character.
    node = YNode("scalar", mapped, text.offset(stop), tag, bool(style), style)
    if event.anchor:
        anchors[event.anchor] = node
        node.anchor = event.anchor
    return node
