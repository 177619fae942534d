"""Jupyter notebooks: code cells as Python, their ``!`` lines and ``%%bash`` cells as shell."""

from __future__ import annotations

import json
import re
from typing import Any

from pytest_kvoffload.lint.sources.collect import Collector
from pytest_kvoffload.lint.sources.formats import trigger
from pytest_kvoffload.lint.sources.grammar import parse
from pytest_kvoffload.lint.sources.markdown import read_markdown
from pytest_kvoffload.lint.sources.python import read_python
from pytest_kvoffload.lint.sources.shell import read_shell
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, align, join
from pytest_kvoffload.lint.sources.tree import char_index


def read_notebook(out: Collector, text: Mapped) -> None:
    """Read the code cells in order."""
    data = text.text.encode("utf-8", "replace")
    index = char_index(text.text, data)
    _tree, root = parse("json", data)
    top = next((c for c in root.named_children if c.type == "object"), None)
    cells = _member(top, b"cells")
    for cell in cells.named_children if cells is not None and cells.type == "array" else ():
        kind, source = _member(cell, b"cell_type"), _member(cell, b"source")
        named = data[kind.start_byte : kind.end_byte] if kind is not None else b""
        if source is None or named not in (b'"code"', b'"markdown"') or (named == b'"markdown"' and not out.markdown):
            continue
        parts = source.named_children if source.type == "array" else [source]
        code = join([_string(text, index, part) for part in parts if part.type == "string"], at=None) if parts else None
        if code is None or not trigger(code.text):
            continue
        if named == b'"code"':
            _cell(out, code)
        else:
            read_markdown(out, code)


def _member(node: Any, key: bytes) -> Any:
    for pair in node.named_children if node is not None and node.type == "object" else ():
        name, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
        if name is not None and value is not None and name.text == b'"' + key + b'"':
            return value
    return None


def _string(text: Mapped, index: list[int] | None, node: Any) -> Mapped:
    start, stop = node.start_byte, node.end_byte
    if index is not None:
        start, stop = index[start], index[stop]
    raw = text[start:stop]
    try:
        value = str(json.loads(raw.text)).replace(HOLE, "\ufffd")
    except ValueError:
        value = raw.text[1:-1]
    return align(raw[1 : len(raw) - 1], value, escapes=True)


def _cell(out: Collector, code: Mapped) -> None:
    magic = re.match(r"\s*%%(bash|sh|script bash|shell)\b[^\n]*\n", code.text)
    if magic:
        read_shell(out, code[magic.end() :])
        return
    python = list(code.text)
    for match in re.finditer(r"(?m)^[ \t]*[!%](?:[^\n]*\\\n)*[^\n]*", code.text):
        line = code[match.start() : match.end()]
        if trigger(line.text):
            bang = re.match(r"[ \t]*[!%]+(?:sx|system)?", line.text)
            read_shell(out, line[bang.end() if bang else 0 :])
        for position in range(match.start(), match.end()):
            if python[position] != "\n":
                python[position] = " "
    rest = code.replaced("".join(python))
    if trigger(rest.text):
        read_python(out, rest)
