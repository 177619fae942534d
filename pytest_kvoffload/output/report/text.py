"""Text of servers, prompts and logs, made harmless for a reader's eye; the template engine escapes the HTML."""

from __future__ import annotations

import unicodedata

LINE_LIMIT = 600
"""Characters of a line that are shown; a log line can be megabytes."""
TEXT_LIMIT = 20_000
"""Characters of a text that are shown."""
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def harmless(text: str) -> str:
    """Return the text without ANSI escapes, with controls and bidirectional marks spelt out and long lines cut.

    Line feeds stay. What is cut is counted, so that nothing disappears in silence.
    """
    from rich.text import Text

    cut = len(text) - TEXT_LIMIT
    if cut > 0:
        text = text[:TEXT_LIMIT]
    if "\x1b" in text or "\x9b" in text:
        text = "\n".join(Text.from_ansi(line).plain for line in text.split("\n"))
    text = "\n".join(_line(line) for line in text.split("\n"))
    return f"{text}\n[{cut} more characters]" if cut > 0 else text


def one_line(text: str, limit: int = 80) -> str:
    """Return a harmless text on one line of at most ``limit`` characters, for labels."""
    flat = " ".join(harmless(text[: 4 * limit]).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _line(line: str) -> str:
    cut = len(line) - LINE_LIMIT
    if not line.isascii() or not line.isprintable():
        line = "".join(
            c if unicodedata.category(c) not in _HIDDEN or c == "\t" else _spelt(c) for c in line[:LINE_LIMIT]
        )
    else:
        line = line[:LINE_LIMIT]
    return f"{line} [{cut} more characters]" if cut > 0 else line


def _spelt(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"
