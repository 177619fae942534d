"""A Python text whose syntax tree's places, and string literals' characters, lead back to the outer file."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from pytest_kvoffload.lint.sources.text import Mapped, align, constant, join


class PyText:
    """A Python text with its syntax tree's places turned to outer offsets."""

    def __init__(self, text: Mapped) -> None:
        self.text = text
        self._starts = [0]
        self._starts.extend(m.end() for m in re.finditer("\n", text.text))
        self._ascii = text.text.isascii()

    def index(self, line: int, column: int) -> int:
        """Return the character index of a 1-based line and a byte column."""
        start = self._starts[min(max(line, 1), len(self._starts)) - 1]
        if self._ascii:
            return start + column
        stop = self._starts[line] if line < len(self._starts) else len(self.text)
        data = self.text.text[start:stop].encode("utf-8", "replace")
        return start + len(data[:column].decode("utf-8", "ignore"))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return the node's character range."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None)
        start = self.index(line, column)
        return start, max(start, self.index(end_line, column if end_column is None else end_column))

    def at(self, node: ast.AST) -> int:
        """Return the node's outer offset."""
        return self.text.offset(self.span(node)[0])

    def end(self, node: ast.AST) -> int:
        """Return the outer offset just after the node."""
        start, stop = self.span(node)
        return self.text.offset(stop - 1) + 1 if stop > start else self.text.offset(start)

    def literal(self, node: ast.Constant, value: str) -> Mapped:
        """Map a string constant's value onto its source, piece by piece when pieces are joined implicitly."""
        start, stop = self.span(node)
        raw = self.text[start:stop]
        plain = re.fullmatch(r"[bBuU]?(\"|')([^\"'\\\n]*)\1", raw.text)
        if plain and plain.group(2) == value:
            return raw[plain.start(2) : plain.end(2)] if value else constant("", raw.at)
        if raw.text[:1] not in "\"'rRbBuUfF" or not raw.text:
            return constant(value, raw.at)
        pieces = [self._piece(raw[a:b]) for a, b in _string_tokens(raw.text)]
        if any(p is None for p in pieces):
            return constant(value, raw.at)
        joined = join([p for p in pieces if p is not None], at=raw.at)
        return joined if joined.text == value else constant(value, raw.at)

    def _piece(self, raw: Mapped) -> Mapped | None:
        match = re.match(r"([A-Za-z]*)(\"\"\"|'''|\"|')", raw.text)
        if match is None or "f" in match.group(1).lower():
            return None
        body = raw[match.end() : len(raw) - len(match.group(2))]
        try:
            value = ast.literal_eval(raw.text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        if not isinstance(value, str):
            return None
        if "r" in match.group(1).lower() or body.text == value:
            return body
        return align(body, value, escapes=True)


def _string_tokens(text: str) -> list[tuple[int, int]]:
    """Return the ranges of the string tokens of an implicit concatenation."""
    starts = [0]
    starts.extend(m.end() for m in re.finditer("\n", text))
    spans: list[tuple[int, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({text})").readline):
            if token.type == tokenize.STRING:
                first = starts[token.start[0] - 1] + token.start[1] - (token.start[0] == 1)
                last = starts[token.end[0] - 1] + token.end[1] - (token.end[0] == 1)
                spans.append((first, last))
    except (tokenize.TokenError, SyntaxError, IndexError):
        return []
    return spans
