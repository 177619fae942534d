"""Go and Jinja templates in YAML: control lines become blanks, inline actions become unresolved pieces.

The text keeps its length, so every place stays right. Nothing is rendered here.
"""

from __future__ import annotations

import re

from pytest_kvoffload.lint.sources.text import HOLE, Mapped

_ACTION = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#(?=[ \n-]).*?#\}", re.DOTALL)
_LINE = re.compile(r"^[ \t]*(?:(?:\{\{.*?\}\}|\{%.*?%\}|\{#(?=[ \n-]).*?#\})[ \t]*)+$", re.DOTALL | re.MULTILINE)
_BASH_LENGTH = re.compile(r"\$\{#$")


def is_template(text: str) -> bool:
    """Whether the text holds template actions (GitHub's ``${{ }}`` is no template of the file)."""
    return "{%" in text or re.search(r"(?<!\$)\{\{", text) is not None


def blank_actions(text: Mapped) -> Mapped:
    """Return the text with its template actions taken out, at the same length."""

    def line(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    def inline(match: re.Match[str]) -> str:
        if match.start() and match.string[match.start() - 1] == "$" and match.group().startswith(("{{", "{#")):
            return match.group()
        if match.group().startswith(("{%", "{#")):
            return re.sub(r"[^\n]", " ", match.group())
        return re.sub(r"[^\n]", HOLE, match.group(), count=0)

    stepped = _LINE.sub(line, text.text)
    return text.replaced(_ACTION.sub(inline, stepped))
