"""Applies ``# kvoffload: ignore[CODE] reason`` and reports the comments that ignore nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.model import Diagnostic, Document
from pytest_kvoffload.lint.registry import entries

UNUSED = "KVO910"


def apply_suppressions(
    document: Document, diagnostics: Sequence[Diagnostic], *, active: frozenset[str] | None = None
) -> list[Diagnostic]:
    """Return the diagnostics that no comment ignores, and one for each comment that ignores nothing.

    Args:
        document: The file, with its comments.
        diagnostics: All findings of the file.
        active: Codes that were checked; a comment for another code is not called unused. ``None``: all.
    """
    known = entries()
    names = {entry.rule.name: code for code, entry in known.items()}
    kept = list(diagnostics)
    extra: list[Diagnostic] = []
    unused = known[UNUSED].rule
    for suppression in document.suppressions:
        lines = _lines(document, suppression.applies_to_line)
        for word in suppression.codes:
            code = names.get(word.lower(), word.upper())
            if code not in known:
                hint = did_you_mean(word, [*known, *names])
                extra.append(unused.at(suppression.location, f"there is no rule {word!r}{hint}"))
                continue
            hit = [d for d in kept if d.code == code and d.location.line in lines]
            if hit:
                kept = [d for d in kept if d not in hit]
            elif active is None or code in active:
                where = f"line {suppression.applies_to_line}"
                extra.append(
                    unused.at(suppression.location, f"{code} finds nothing on {where}: the comment is not needed")
                )
    return kept + extra


def _lines(document: Document, line: int) -> frozenset[int]:
    """Return the lines that a comment for ``line`` covers.

    A continued command and a YAML block scalar cannot hold comments, so a comment on or above their first line covers
    them whole.
    """
    lines = document.text.splitlines()
    last = line
    while last < len(lines) and lines[last - 1].rstrip().endswith("\\"):
        last += 1
    if last == line and 1 <= line <= len(lines) and _BLOCK.search(lines[line - 1]):
        indent = _indent(lines[line - 1])
        while last < len(lines) and (not lines[last].strip() or _indent(lines[last]) > indent):
            last += 1
    return frozenset(range(line, last + 1))


_BLOCK = re.compile(r":\s*[|>][+-]?\d?\s*(?:#.*)?$|^\s*-\s*[|>][+-]?\d?\s*(?:#.*)?$")


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))
