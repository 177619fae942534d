"""Text that remembers where every character stands in the outer file.

A flag inside a folded YAML scalar inside a Helm value goes through several decoders (YAML folding, shell quoting,
JSON). Each of them works on :class:`Mapped` text, so that the last one still knows the line and column in the file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pytest_kvoffload.lint.model import Certainty, Location

HOLE = "\ue000"
"""Stands for a piece of text that only a run would give (one private-use character for each such piece)."""

MAX_JOINED = 1_000_000
"""Characters of one joined text; ``A=$A$A`` a few times over is no configuration."""


class TooMuch(Exception):  # noqa: N818  a signal inside the readers, never shown to a user
    """The text asks for more work or memory than a configuration does."""


_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-7]{1,3}|\r?\n[ \t]*|.)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Mapped:
    """Decoded text with the outer offset of each of its characters.

    ``at`` is the outer offset where the text begins, kept for empty text too. ``defaulted`` says that a
    ``${VAR:-fallback}`` went into it.
    """

    text: str
    offsets: Sequence[int]
    at: int
    defaulted: bool = False

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, part: slice) -> Mapped:
        start, stop, _ = part.indices(len(self.text))
        at = self.offsets[start] if start < len(self.text) else self.end
        return Mapped(self.text[start:stop], self.offsets[start:stop], at, self.defaulted)

    @property
    def end(self) -> int:
        """Outer offset just after the last character."""
        return self.offsets[-1] + 1 if len(self.text) else self.at

    @property
    def certainty(self) -> Certainty:
        """How sure the text is: a hole makes it ``unresolved``."""
        if HOLE in self.text:
            return "unresolved"
        return "default" if self.defaulted else "known"

    def offset(self, index: int) -> int:
        """Return the outer offset of the character at ``index`` (clamped to the text)."""
        if not self.text:
            return self.at
        if index >= len(self.text):
            return self.end
        return self.offsets[max(index, 0)]

    def strip(self) -> Mapped:
        """Return the text without surrounding white space."""
        left = len(self.text) - len(self.text.lstrip())
        return self[left : max(left, len(self.text.rstrip()))]

    def replaced(self, text: str) -> Mapped:
        """Return ``text`` of the same length at the same places."""
        if len(text) != len(self.text):
            raise ValueError("a replacement of another length would lose its places")
        return Mapped(text, self.offsets, self.at, self.defaulted)

    def split(self) -> list[Mapped]:
        """Split on white space, as a shell does with an unquoted expansion."""
        return [self[m.start() : m.end()] for m in re.finditer(r"\S+", self.text)]


def whole(text: str) -> Mapped:
    """Return a complete file as mapped text."""
    return Mapped(text, range(len(text)), 0)


def empty(at: int) -> Mapped:
    """Return empty text that stands at ``at``."""
    return Mapped("", (), at)


def hole(at: int) -> Mapped:
    """Return one unresolved piece that stands at ``at``."""
    return Mapped(HOLE, (at,), at)


def constant(text: str, at: int) -> Mapped:
    """Return text that is written nowhere as such; every character points to ``at``."""
    return Mapped(text, [at] * len(text), at)


def join(parts: Iterable[Mapped], at: int | None = None, glue: str = "") -> Mapped:
    """Concatenate; ``glue`` characters point to the end of the part before them."""
    pieces = list(parts)
    if len(pieces) == 1 and at is None:
        return pieces[0]
    if sum(len(piece) for piece in pieces) > MAX_JOINED:
        raise TooMuch
    texts: list[str] = []
    offsets: list[int] = []
    for index, part in enumerate(pieces):
        if index and glue:
            texts.append(glue)
            offsets.extend([pieces[index - 1].end] * len(glue))
        texts.append(part.text)
        offsets.extend(part.offsets)
    start = pieces[0].at if pieces else 0
    return Mapped("".join(texts), offsets, start if at is None else at, any(p.defaulted for p in pieces))


def align(raw: Mapped, value: str, *, escapes: bool = False, skip: str = "") -> Mapped:
    """Map a decoded ``value`` back onto the ``raw`` text it was decoded from.

    Decoders (YAML scalars, shlex, Python strings) only change white space, drop the characters of ``skip`` (quotes,
    backslashes), or, with ``escapes``, replace backslash sequences. The walk never fails: characters that cannot be
    found point to the last place known.
    """
    offsets: list[int] = []
    text, position, last = raw.text, 0, raw.at
    size = len(text)
    for char in value:
        if escapes and position < size and text[position] == "\\" and (match := _ESCAPE.match(text, position)):
            while match and match.group()[1:2] in "\r\n" and match.group() != "\\":
                position = match.end()
                match = _ESCAPE.match(text, position) if position < size and text[position] == "\\" else None
            if match:
                last = raw.offset(position)
                offsets.append(last)
                position = match.end()
                continue
        if char.isspace():
            probe = position
            while probe < size and text[probe] in skip and text[probe] != char:
                probe += 1
            while probe < size and text[probe].isspace() and text[probe] != char:
                probe += 1
            if probe < size and text[probe].isspace():
                last, position = raw.offset(probe), probe + 1
            elif position < size and text[position].isspace():
                last, position = raw.offset(position), position + 1
        else:
            probe = position
            while probe < size and text[probe] != char and (text[probe].isspace() or text[probe] in skip):
                probe += 1
            if probe < size and text[probe] == char:
                last, position = raw.offset(probe), probe + 1
        offsets.append(last)
    return Mapped(value, offsets, offsets[0] if offsets else raw.at, raw.defaulted)


@dataclass(frozen=True, slots=True)
class Source:
    """The outer file: its path, its text, and where its lines begin."""

    path: str
    text: str
    starts: Sequence[int] = field(default=(), repr=False)

    @staticmethod
    def of(path: str, text: str) -> Source:
        """Index the lines of ``text``."""
        starts = [0]
        starts.extend(match.end() for match in re.finditer("\n", text))
        return Source(path, text, starts)

    def location(self, offset: int) -> Location:
        """Return the 1-based line and column of a character offset."""
        offset = min(max(offset, 0), len(self.text))
        line = bisect_right(self.starts, offset)
        return Location(path=self.path, line=line, column=offset - self.starts[line - 1] + 1)

    def line_text(self, line: int) -> str:
        """Return the text of a 1-based line without its newline."""
        start = self.starts[line - 1]
        stop = self.starts[line] - 1 if line < len(self.starts) else len(self.text)
        return self.text[start:stop]
