"""Applies the mechanical fixes of diagnostics, and shows them as a diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pytest_kvoffload.lint.model import Diagnostic, Edit


def apply_fixes(text: str, diagnostics: Iterable[Diagnostic]) -> tuple[str, int]:
    """Return the text with every fix that overlaps no earlier one, and how many diagnostics were fixed."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)  # columns are counted without the byte order mark
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    chosen: list[tuple[int, int, str]] = []
    fixed = 0
    for diagnostic in sorted(diagnostics, key=lambda d: (d.location.line, d.location.column)):
        spans = [_span(edit, starts, len(text)) for edit in diagnostic.fix]
        if not spans or any(span is None for span in spans):
            continue
        new = [(start, end, edit.replacement) for (start, end), edit in zip(spans, diagnostic.fix, strict=True)]  # type: ignore[misc]
        if any(
            (start < other_end and other_start < end) or (start, end) == (other_start, other_end)
            for start, end, _ in new
            for other_start, other_end, _ in chosen
        ):
            continue
        chosen.extend(new)
        fixed += 1
    for start, end, replacement in sorted(chosen, reverse=True):
        text = text[:start] + replacement + text[end:]
    return mark + text, fixed


def _span(edit: Edit, starts: list[int], length: int) -> tuple[int, int] | None:
    if not (1 <= edit.location.line < len(starts) and 1 <= edit.end_line < len(starts)):
        return None
    start = starts[edit.location.line - 1] + edit.location.column - 1
    end = starts[edit.end_line - 1] + edit.end_column - 1
    return (start, end) if 0 <= start <= end <= length else None


def diff(path: str, before: str, after: str) -> str:
    """Return a unified diff of one file."""
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
        )
    )
