"""Python expressions that are known from the text alone, evaluated over :mod:`ast` with places kept."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_kvoffload.lint.model import Member, Node
from pytest_kvoffload.lint.sources.collect import Collector, Word
from pytest_kvoffload.lint.sources.py_text import PyText
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, align, constant, hole, join
from pytest_kvoffload.lint.sources.tree import from_json, scalar_node
from pytest_kvoffload.lint.sources.yamlwords import shlex_words

MAX_DEPTH = 40
_CONFIG_CALLS = ("KVTransferConfig", "KVEventsConfig", "dict")


@dataclass(slots=True, eq=False)
class PyValue:
    """One value. ``kind``: ``text``, ``number``, ``boolean``, ``none``, ``list``, ``dict``, ``unknown``."""

    kind: str
    text: Mapped
    end: int
    items: list[PyValue] = field(default_factory=list)
    members: list[tuple[str, int, PyValue]] = field(default_factory=list)
    complete: bool = True
    """``False`` when a list or dict has more entries than are known."""
    config: bool = False
    """Whether it came from a ``KVTransferConfig(...)`` call."""
    environ: bool = False
    """Whether it began as a copy of ``os.environ``."""

    @property
    def at(self) -> int:
        """Outer offset."""
        return self.text.at

    def get(self, key: str) -> PyValue | None:
        """Return the last member of that name."""
        for name, _, value in reversed(self.members):
            if name == key:
                return value
        return None


class Scope:
    """Names and what they are bound to, seen in file order."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.names: dict[str, PyValue] = dict(parent.names) if parent else {}


class Evaluator:
    """Evaluates expressions of one text."""

    def __init__(self, out: Collector, source: PyText) -> None:
        self.out = out
        self.source = source

    def unknown(self, node: ast.AST) -> PyValue:
        """Return the value of what only a run would tell."""
        at = self.source.at(node)
        return PyValue("unknown", hole(at), self.source.end(node), complete=False)

    def value(self, node: ast.AST | None, scope: Scope, depth: int = 0) -> PyValue:
        """Evaluate an expression."""
        self.out.spend()
        if node is None or depth > MAX_DEPTH:
            return PyValue("unknown", hole(0), 0, complete=False)
        found = self._value(node, scope, depth + 1)
        return found if found is not None else self.unknown(node)

    def _value(self, node: ast.AST, scope: Scope, depth: int) -> PyValue | None:
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return scope.names.get(node.id)
        if isinstance(node, ast.Attribute):
            return scope.names.get(_dotted(node))
        if isinstance(node, ast.JoinedStr):
            return self._fstring(node, scope, depth)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return self._list(node, scope, depth)
        if isinstance(node, ast.Dict):
            return self._dict(node, scope, depth)
        if isinstance(node, ast.BinOp):
            return self._binary(node, scope, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, scope, depth)
            if inner.kind == "number" and not inner.text.text.startswith("-"):
                return self._made("number", "-" + inner.text.text, node)
            return None
        if isinstance(node, ast.Call):
            return self._call(node, scope, depth)
        if isinstance(node, ast.Subscript):
            base = self.value(node.value, scope, depth)
            key = self.value(node.slice, scope, depth)
            return base.get(key.text.text) if base.kind == "dict" else None
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            last = self.value(node.values[-1], scope, depth)
            return _defaulted(last) if last.kind in ("text", "number") else None
        return None

    def _made(self, kind: str, text: str, node: ast.AST) -> PyValue:
        return PyValue(kind, constant(text, self.source.at(node)), self.source.end(node))

    def _constant(self, node: ast.Constant) -> PyValue | None:
        value = node.value
        if isinstance(value, str):
            clean = value.replace(HOLE, "\ufffd")
            return PyValue("text", self.source.literal(node, clean), self.source.end(node))
        if isinstance(value, bool):
            return self._made("boolean", str(value), node)
        if isinstance(value, (int, float)):
            try:
                return self._made("number", str(value), node)
            except ValueError:
                return None
        if value is None:
            return self._made("none", "None", node)
        return None

    def _fstring(self, node: ast.JoinedStr, scope: Scope, depth: int) -> PyValue:
        parts: list[Mapped] = []
        at = self.source.at(node)
        start, stop = self.source.span(node)
        position = start
        for part in node.values:
            if isinstance(part, ast.Constant):
                text = str(part.value).replace(HOLE, "\ufffd")
                mapped, position = self._fstring_text(part, text, position, stop, at)
                parts.append(mapped)
            elif isinstance(part, ast.FormattedValue):
                inner = self.value(part.value, scope, depth)
                if inner.kind in ("text", "number", "boolean") and part.format_spec is None:
                    parts.append(inner.text)
                else:
                    parts.append(hole(at))
                closing = self.source.text.text.find("}", position, stop)
                position = closing + 1 if closing >= 0 else position
        return PyValue("text", join(parts, at=at), self.source.end(node))

    def _fstring_text(self, part: ast.Constant, text: str, position: int, stop: int, at: int) -> tuple[Mapped, int]:
        """Find an f-string's literal part in the source: exactly, with ``{{`` undone, or only by the string's place."""
        source = self.source.text
        for shown in (text, text.replace("{", "{{").replace("}", "}}")):
            index = source.text.find(shown, position, stop)
            if index >= 0 and shown == text:
                return source[index : index + len(text)], index + len(text)
            if index >= 0:
                raw = source[index : index + len(shown)]
                return _undouble(raw), index + len(shown)
        first = re.match(r"[^\n\\\"']*", text)
        index = source.text.find(first.group(), position, stop) if first and len(first.group()) > 3 else -1
        if index >= 0:
            raw = source[index:stop]
            return align(raw, text, escapes=True, skip="\"'\\\n{}"), position
        return constant(text, at), position

    def _list(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope, depth: int) -> PyValue:
        result = PyValue("list", constant("", self.source.at(node)), self.source.end(node))
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = self.value(element.value, scope, depth)
                if inner.kind == "list":
                    result.items.extend(inner.items)
                    result.complete = result.complete and inner.complete
                else:
                    spread = self.unknown(element)
                    spread.kind = "spread"
                    result.items.append(spread)
                    result.complete = False
            else:
                result.items.append(self.value(element, scope, depth))
        return result

    def _dict(self, node: ast.Dict, scope: Scope, depth: int) -> PyValue:
        result = PyValue("dict", constant("", self.source.at(node)), self.source.end(node))
        for key, value in zip(node.keys, node.values, strict=True):
            inner = self.value(value, scope, depth)
            if key is None:
                result.environ = result.environ or inner.environ or _is_environ(value)
                result.members.extend(inner.members)
                result.complete = result.complete and (inner.kind == "dict" or _is_environ(value))
                continue
            name = self.value(key, scope, depth)
            if name.kind == "text" and HOLE not in name.text.text:
                result.members.append((name.text.text, self.source.at(key), inner))
            else:
                result.complete = False
        return result

    def _binary(self, node: ast.BinOp, scope: Scope, depth: int) -> PyValue | None:
        left = self.value(node.left, scope, depth)
        right = self.value(node.right, scope, depth)
        if isinstance(node.op, ast.Add):
            if left.kind == "list" or right.kind == "list":
                result = PyValue("list", constant("", self.source.at(node)), self.source.end(node))
                for side in (left, right):
                    if side.kind == "list":
                        result.items.extend(side.items)
                        result.complete = result.complete and side.complete
                    else:
                        side.kind = "spread" if side.kind == "unknown" else side.kind
                        result.items.append(side)
                        result.complete = False
                return result
            if "text" in (left.kind, right.kind):
                parts = [v.text if v.kind == "text" else hole(v.at) for v in (left, right)]
                return PyValue("text", join(parts, at=self.source.at(node)), self.source.end(node))
        if left.kind == "number" and right.kind == "number":
            number = _operate(left.text.text, right.text.text, node.op)
            return self._made("number", str(number), node) if number is not None else None
        if isinstance(node.op, ast.BitOr) and left.kind == "dict" and right.kind == "dict":
            merged = PyValue("dict", constant("", self.source.at(node)), self.source.end(node))
            merged.members = [*left.members, *right.members]
            merged.complete = left.complete and right.complete
            return merged
        return None

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> PyValue | None:
        name = _dotted(node.func)
        last = name.rsplit(".", 1)[-1]
        first = node.args[0] if node.args else None
        if last in _CONFIG_CALLS:
            return self._keywords(node, scope, depth, config=last != "dict")
        if last == "from_cli" and first is not None:
            inner = self.value(first, scope, depth)
            return PyValue(inner.kind, inner.text, inner.end, config=True)
        if name in ("json.dumps", "dumps") and first is not None:
            return self._dumps(self.value(first, scope, depth), node)
        if name in ("json.loads", "loads") and first is not None:
            return self.value(first, scope, depth)
        if last in ("str", "quote") and first is not None and len(node.args) == 1:
            inner = self.value(first, scope, depth)
            return PyValue("text", inner.text, inner.end) if inner.kind in ("text", "number", "boolean") else None
        if last == "int" and first is not None:
            inner = self.value(first, scope, depth)
            whole = inner.kind == "number" and re.fullmatch(r"-?\d+(\.\d+)?", inner.text.text)
            return self._made("number", str(int(float(inner.text.text))), node) if whole else None
        if name in ("os.environ.get", "os.getenv", "getenv", "environ.get") and len(node.args) == 2:
            return _defaulted(self.value(node.args[1], scope, depth))
        if name in ("shlex.split",) and first is not None:
            return self._words(self.value(first, scope, depth), node)
        if name in ("os.environ.copy", "environ.copy"):
            return PyValue("dict", constant("", self.source.at(node)), self.source.end(node), environ=True)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, scope, depth)
        return None

    def _method(self, node: ast.Call, func: ast.Attribute, scope: Scope, depth: int) -> PyValue | None:
        base = self.value(func.value, scope, depth)
        if func.attr == "split" and base.kind == "text" and not node.args:
            return self._words(base, node)
        if func.attr in ("strip", "rstrip", "lstrip") and base.kind == "text" and not node.args:
            return PyValue("text", base.text.strip(), base.end)
        if func.attr == "join" and base.kind == "text" and node.args:
            inner = self.value(node.args[0], scope, depth)
            if inner.kind == "list" and inner.items and base.text.text.strip() in ("", "\\", ",", "&&", ";"):
                parts = [v.text for v in inner.items]
                return PyValue("text", join(parts, at=inner.at, glue=base.text.text), inner.end)
        if func.attr == "copy" and base.kind in ("list", "dict"):
            copy = PyValue(base.kind, base.text, base.end, list(base.items), list(base.members), base.complete)
            copy.environ = base.environ
            return copy
        if func.attr == "format" and base.kind == "text":
            text = re.sub(r"(?<!\{)\{[\w.\[\]]*\}(?!\})", HOLE, base.text.text)
            return PyValue("text", align(base.text, text, skip="{}"), base.end)
        return None

    def _words(self, text: PyValue, node: ast.AST) -> PyValue | None:
        if text.kind != "text":
            return None
        result = PyValue("list", constant("", text.at), self.source.end(node))
        result.items = [PyValue("text", w.value, w.end) for w in shlex_words(text.text)]
        return result

    def _keywords(self, node: ast.Call, scope: Scope, depth: int, config: bool) -> PyValue:
        result = PyValue("dict", constant("", self.source.at(node)), self.source.end(node), config=config)
        for argument in node.args:
            inner = self.value(argument, scope, depth)
            result.environ = result.environ or inner.environ or _is_environ(argument)
            result.members.extend(inner.members)
            result.complete = result.complete and (inner.kind == "dict" or _is_environ(argument))
        for keyword in node.keywords:
            inner = self.value(keyword.value, scope, depth)
            if keyword.arg is None:
                result.members.extend(inner.members)
                result.complete = result.complete and inner.kind == "dict" and inner.complete
            else:
                result.members.append((keyword.arg, self.source.at(keyword), inner))
        return result

    def _dumps(self, value: PyValue, node: ast.AST) -> PyValue:
        return PyValue("text", json_text(value), self.source.end(node))


def json_text(value: PyValue, depth: int = 0) -> Mapped:
    """Write a value as JSON whose characters point to where its parts are written."""
    at = value.at
    if depth > MAX_DEPTH:
        return hole(at)
    if value.kind == "dict":
        parts = [constant("{", at)]
        for index, (name, place, inner) in enumerate(value.members):
            parts.append(constant(("," if index else "") + json.dumps(name) + ":", place))
            parts.append(json_text(inner, depth + 1))
        return join([*parts, constant("}", value.end - 1)], at=at)
    if value.kind == "list":
        parts = [constant("[", at)]
        for index, inner in enumerate(value.items):
            parts.append(constant("," if index else "", inner.at))
            parts.append(json_text(inner, depth + 1))
        return join([*parts, constant("]", max(value.end - 1, at))], at=at)
    if value.kind == "text":
        return constant(json.dumps(value.text.text, ensure_ascii=False), at)
    if value.kind == "boolean":
        return constant(value.text.text.lower(), at)
    if value.kind == "number":
        return value.text
    return constant("null", at) if value.kind == "none" else hole(at)


def to_node(out: Collector, value: PyValue, depth: int = 0) -> Node:
    """Make the neutral tree of a value; a string where an object is expected is parsed as JSON by the caller."""
    location = out.location(value.at)
    if depth > MAX_DEPTH:
        return Node(kind="unresolved", location=location)
    raw = out.source.text[value.at : value.end] if value.end - value.at < 400 else ""
    if value.kind == "dict":
        members = tuple(
            Member(key=name, location=out.location(at), node=to_node(out, inner, depth + 1))
            for name, at, inner in value.members
        )
        return Node(kind="object", location=location, members=members)
    if value.kind == "list":
        return Node(kind="array", location=location, items=tuple(to_node(out, i, depth + 1) for i in value.items))
    text = value.text.text
    if HOLE in text or value.kind in ("unknown", "spread"):
        return Node(kind="unresolved", location=location, raw=raw)
    if value.kind == "boolean":
        return scalar_node(text == "True", location, raw)
    if value.kind == "none":
        return scalar_node(None, location, raw)
    if value.kind == "number":
        try:
            return scalar_node(json.loads(text), location, raw)
        except ValueError:
            return Node(kind="unresolved", location=location, raw=raw)
    return scalar_node(text, location, raw)


def config_node(out: Collector, value: PyValue) -> tuple[Node, str | None, str | None]:
    """Return (tree, text, error) of a configuration given as an object, a dict, or JSON text."""
    if value.kind == "text":
        node, error, _ = from_json(out.source, value.text)
        return node, None if HOLE in value.text.text else value.text.text, error
    return to_node(out, value), None, None


def as_words(value: PyValue) -> list[Word]:
    """Return a list value as command-line words."""
    words: list[Word] = []
    for item in value.items[:2000]:
        if item.kind in ("spread", "list", "dict"):
            words.append(Word(hole(item.at), item.at, item.end, spread=True))
        else:
            words.append(Word(item.text, item.at, max(item.end, item.at), quoted=item.kind == "text"))
    if not value.complete and not any(w.spread for w in words):
        words.append(Word(hole(value.end), value.end, value.end, spread=True))
    return words


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < 20:
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts)).lstrip(".")


dotted = _dotted


def _is_environ(node: ast.AST) -> bool:
    return _dotted(node) in ("os.environ", "environ")


is_environ = _is_environ


def _defaulted(value: PyValue) -> PyValue:
    text = Mapped(value.text.text, value.text.offsets, value.text.at, True)
    return PyValue(value.kind, text, value.end, value.items, value.members, value.complete)


def _undouble(raw: Mapped) -> Mapped:
    parts: list[Mapped] = []
    last = 0
    for match in re.finditer(r"\{\{|\}\}", raw.text):
        parts.append(raw[last : match.start() + 1])
        last = match.end()
    parts.append(raw[last:])
    return join(parts, at=raw.at)


_NUMBER = re.compile(r"-?(?:\d+|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)$")


def _operate(left: str, right: str, operator: ast.operator) -> int | float | None:
    if len(left) > 25 or len(right) > 25:
        return None
    if not _NUMBER.match(left) or not _NUMBER.match(right):
        return None
    a: int | float = float(left) if "." in left or "e" in left else int(left)
    b: int | float = float(right) if "." in right or "e" in right else int(right)
    if isinstance(operator, ast.Add):
        return a + b
    if isinstance(operator, ast.Sub):
        return a - b
    if isinstance(operator, ast.Mult):
        return a * b
    if isinstance(operator, ast.Div):
        return a / b if b else None
    if isinstance(operator, ast.FloorDiv):
        return a // b if b else None
    whole = isinstance(a, int) and isinstance(b, int)
    if isinstance(operator, ast.Pow) and whole and 0 <= b < 80 and abs(a) < 2**20:
        return int(pow(int(a), int(b)))
    if isinstance(operator, ast.LShift) and whole and 0 <= b < 64:
        return int(a) << int(b)
    return None


def first_text(values: Sequence[PyValue]) -> PyValue | None:
    """Return the first value that is text."""
    return next((v for v in values if v.kind == "text"), None)
