"""Long lines for a terminal: broken between words, the rest indented; elsewhere a line stays a line."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

_STYLES: Mapping[str, str] = {"PASS": "bold green", "FAIL": "bold red", "INCONCLUSIVE": "bold yellow"}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_VERDICT = re.compile(r"(?m)^(?:verdict: )?(PASS|FAIL|INCONCLUSIVE)\b")


def fit(text: str, *, width: int) -> str:
    """Break lines of more than ``width`` columns between words.

    What follows a break is indented by two more than the line. A word that is too long, such as a path, stays whole: it
    can still be copied.
    """
    lines = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())] + "  "
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
    return "\n".join(lines)


def fit_stream(text: str, stream: TextIO) -> str:
    """Break lines as :func:`fit` does where the stream is a terminal."""
    return fit(text, width=shutil.get_terminal_size().columns) if stream.isatty() else text


def show(text: str) -> None:
    """Print to standard output; on a terminal broken between words, with the words of verdicts in colour."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console

    console = Console(file=sys.stdout)
    console.print(_coloured(fit(clean(text), width=console.width)), soft_wrap=True)


def clean(text: str) -> str:
    """Take out what a terminal would obey: escape sequences and control characters, except line breaks."""
    plain = _ESCAPES.sub("", text)
    return "".join(c if c.isprintable() or c == "\n" else " " for c in plain)


def _coloured(text: str) -> Text:
    from rich.text import Text

    out = Text(text)
    for match in _VERDICT.finditer(text):
        out.stylize(_STYLES[match[1]], match.start(1), match.end(1))
    return out
