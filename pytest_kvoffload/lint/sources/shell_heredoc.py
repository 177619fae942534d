"""Here-documents: values of variables, files that the script writes, and text in other languages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.lint.sources.shell_state import State
from pytest_kvoffload.lint.sources.shell_words import Fields, _expand, expand_one
from pytest_kvoffload.lint.sources.text import Mapped, empty, join

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.shell import Script


def heredoc_of(script: Script, node: Any, state: State) -> Mapped | None:
    """Return the here-document's text, expanded unless its delimiter is quoted."""
    for child in node.named_children:
        if child.type == "herestring_redirect":
            parts = child.named_children
            return expand_one(script, parts[0], state).value if parts else None
        if child.type != "heredoc_redirect":
            continue
        start = next((c for c in child.named_children if c.type == "heredoc_start"), None)
        body = next((c for c in child.named_children if c.type == "heredoc_body"), None)
        if body is None or start is None:
            return None
        dashed = any(c.type == "<<-" for c in child.children)
        if script.text_of(start).text[:1] in "'\"\\":
            text = script.text_of(body)
        else:
            text = _expanded(script, body, state)
        return _undented(text) if dashed else text
    return None


def _expanded(script: Script, body: Any, state: State) -> Mapped:
    fields = Fields()
    position = body.start_byte
    fields.add(empty(script.outer(position)), True)
    for child in body.named_children:
        if child.start_byte > position:
            fields.add(_plain(script.slice(position, child.start_byte)), True)
        if child.type == "heredoc_content":
            fields.add(_plain(script.text_of(child)), True)
        else:
            _expand(script, child, state, fields, True)
        position = child.end_byte
    if body.end_byte > position:
        fields.add(_plain(script.slice(position, body.end_byte)), True)
    fields.close()
    return join([w.value for w in fields.words], at=script.outer(body.start_byte))


def _plain(text: Mapped) -> Mapped:
    """Undo the backslashes that a here-document undoes: before ``$``, a backtick, a backslash, a newline."""
    if "\\" not in text.text:
        return text
    parts, last = [], 0
    for match in re.finditer(r"\\([$`\\\n])", text.text):
        parts.append(text[last : match.start()])
        if match.group(1) != "\n":
            parts.append(text[match.start() + 1 : match.end()])
        last = match.end()
    parts.append(text[last:])
    return join(parts, at=text.at)


def _undented(text: Mapped) -> Mapped:
    parts, last = [], 0
    for match in re.finditer(r"(?m)^\t+", text.text):
        parts.append(text[last : match.start()])
        last = match.end()
    parts.append(text[last:])
    return join(parts, at=text.at)


def file_written(script: Script, node: Any, state: State) -> str:
    """Return the name behind ``> name`` or of ``tee name``, ``""`` when nothing is written."""
    for redirect in _redirects(node):
        if any(c.type in (">", ">>", ">|", "&>") for c in redirect.children):
            target = redirect.child_by_field_name("destination")
            if target is not None and not any(c.type == "file_descriptor" for c in redirect.children):
                return expand_one(script, target, state).text
    text = script.text_of(node).text[:400].split("\n", 1)[0]
    match = re.search(r"\btee\s+(?:-a\s+|--append\s+)?([^\s<>|&;]+)", text)
    if match:
        return match.group(1).strip("'\"")
    return ""


def _redirects(node: Any) -> list[Any]:
    found = []
    for child in node.named_children:
        if child.type == "file_redirect":
            found.append(child)
        elif child.type in ("heredoc_redirect", "redirected_statement"):
            found.extend(_redirects(child))
    return found


_SHELLS = re.compile(r"\b(?:bash|sh|zsh|dash|ssh|sbatch|srun|salloc)\b")


def keep_heredoc(script: Script, node: Any, text: Mapped, target: str, state: State) -> None:
    """Remember a written file, and read the text as what it is."""
    from pytest_kvoffload.lint.sources.nested import read_nested

    if target and not target.startswith("/dev/"):
        state.files.append((target, text))
        del state.files[:-40]
    line = script.text_of(node).text[:600].split("\n", 1)[0]
    kind = ""
    if not target:
        if _SHELLS.search(line):
            kind = "shell"
        elif re.search(r"\bpython[0-9.]*\b", line):
            kind = "python"
        elif re.search(r"\b(?:kubectl|oc|helm|docker[ -]compose)\b", line):
            kind = "yaml"
    read_nested(script, text, target, kind, state)
