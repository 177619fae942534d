"""Markdown: fenced code blocks, read as the language that their fence names."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

from pytest_kvoffload.lint.sources.collect import Collector
from pytest_kvoffload.lint.sources.formats import sniff, trigger
from pytest_kvoffload.lint.sources.text import Mapped, align

_LANGUAGES = {
    "bash": "shell", "sh": "shell", "shell": "shell", "zsh": "shell", "console": "shell", "shell-session": "shell",
    "shellsession": "shell", "terminal": "shell", "": "", "text": "", "yaml": "yaml", "yml": "yaml",
    "python": "python", "py": "python", "python3": "python", "dockerfile": "dockerfile", "docker": "dockerfile",
    "toml": "toml", "json": "json", "ini": "systemd", "systemd": "systemd", "env": "dotenv", "dotenv": "dotenv",
}  # fmt: skip


def read_markdown(out: Collector, text: Mapped) -> None:
    """Read every fenced block that holds a trigger word."""
    from pytest_kvoffload.lint.sources import READERS

    starts = [0]
    starts.extend(m.end() for m in re.finditer("\n", text.text))
    saved = out.env_complete
    out.env_complete = False
    out.embedded.append("markdown")
    try:
        for token in MarkdownIt("commonmark").parse(text.text):
            if token.type not in ("fence", "code_block") or not token.map or not trigger(token.content):
                continue
            first = token.map[0] + (token.type == "fence")
            raw = text[starts[min(first, len(starts) - 1)] :]
            block = align(raw[: len(token.content) * 4 + 400], token.content, skip="> ")
            language = re.split(r"[\s{:,]", token.info.strip().lower().lstrip("{."), maxsplit=1)[0].rstrip("}")
            kind = _LANGUAGES.get(language)
            if kind == "":
                kind = sniff("block", token.content)
            if kind == "shell":
                block = without_prompts(block)
            reader = READERS.get(kind or "")
            if reader is not None:
                reader(out, block)
    finally:
        out.embedded.pop()
        out.env_complete = saved


def without_prompts(text: Mapped) -> Mapped:
    """Blank the ``$`` of a console session's prompt (and the prompt's ``user@host:path``)."""
    return text.replaced(
        re.sub(
            r"(?m)^([ \t]*)(\$|[\w-]+@[\w.-]+:\S*[$#])(?=[ \t])",
            lambda m: m.group(1) + " " * len(m.group(2)),
            text.text,
        )
    )
