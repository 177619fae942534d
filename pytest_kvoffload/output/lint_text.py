"""Findings for a terminal: place, source line, caret, remedy."""

from __future__ import annotations

import re

from pytest_kvoffload.lint.model import Diagnostic
from pytest_kvoffload.lint.run import Report

MAX_LINE = 160
"""Characters of the source line that are shown; a longer one is cut around the caret."""

COLOURS = {"error": "31", "warning": "33", "note": "36"}


def render(report: Report, *, colour: bool = False, summary: bool = True) -> str:
    """Return the whole report as text; every line ends with a newline."""
    parts: list[str] = []
    for file in report.files:
        lines = file.text.splitlines()
        parts.extend(finding(d, lines, colour=colour) for d in file.diagnostics)
    if summary:
        parts.append(summary_lines(report))
    return "".join(parts)


def finding(diagnostic: Diagnostic, lines: list[str], *, colour: bool = False) -> str:
    """Return one finding with its source line."""
    where = diagnostic.location
    severity = diagnostic.severity
    if colour:
        severity = f"\033[{COLOURS[severity]};1m{severity}\033[0m"  # type: ignore[assignment]
    place = f"{where.path}:{where.line}:{where.column}"
    head = f"{place}: {severity}: {diagnostic.message} [{diagnostic.code} {diagnostic.name}]\n"
    notes = [f"   = {diagnostic.remedy}"]
    if diagnostic.versions not in {"", "all"}:
        notes.append(f"   = holds for: {diagnostic.versions}")
    if diagnostic.confidence != "high":
        notes.append(f"   = confidence: {diagnostic.confidence}")
    return head + _snippet(diagnostic, lines) + "\n".join(notes) + "\n"


def _snippet(diagnostic: Diagnostic, lines: list[str]) -> str:
    number, column = diagnostic.location.line, diagnostic.location.column
    if not 1 <= number <= len(lines):
        return ""
    line = mask(lines[number - 1].replace("\t", " "))
    start = 0
    if len(line) > MAX_LINE and column > MAX_LINE * 3 // 4:
        start = min(column - MAX_LINE // 2, len(line) - MAX_LINE)
    shown = line[start : start + MAX_LINE]
    before, after = "..." if start else "", "..." if start + MAX_LINE < len(line) else ""
    gutter = " " * (len(str(number)) + 1)
    caret = " " * (len(before) + max(column - 1 - start, 0)) + "^" + "~" * (_width(shown, column - 1 - start) - 1)
    return f"{gutter}|\n{number} | {before}{shown}{after}\n{gutter}| {caret}\n"


def mask(line: str) -> str:
    """Replace what looks like a secret by asterisks of the same length, so that carets still point right."""
    for pattern in _SECRETS:
        line = pattern.sub(lambda match: match.group(1) + "*" * len(match.group(2)), line)
    return line


_SECRETS = (
    re.compile(
        r"((?:secret|passw(?:or)?d|passwd|token|access_?key(?:_id)?|api[-_]?key|credential)\w*\\?[\"']?\s*[:=]\s*\\?[\"']?)"
        r"([^\"'\\,}\s]+)",
        re.IGNORECASE,
    ),
    re.compile(r"(\w+://[^/\s:@]*:)([^@/\s]+)(?=@)"),
    re.compile(r"(--(?:api-key|hf-token)[=\s]+)(\S+)"),
)


def _width(shown: str, column: int) -> int:
    """Length of the word under the caret."""
    rest = shown[max(column, 0) :]
    for index, char in enumerate(rest):
        if char.isspace() or char in ",}])" or (char in "=:" and index):
            return max(index, 1)
    return max(len(rest), 1)


def summary_lines(report: Report) -> str:
    """Return the counts, what could not be read statically, and what was skipped."""
    errors, warnings, notes = (report.count(s) for s in ("error", "warning", "note"))
    files = len({d.location.path for d in report.diagnostics})
    text = ""
    for path, reason in report.skipped[:20]:
        text += f"skipped {path}: {reason}\n"
    if len(report.skipped) > 20:
        text += f"skipped {len(report.skipped) - 20} more files\n"
    for file in report.files:
        for note in file.unresolved:
            text += f"{note.location.path}:{note.location.line}: cannot be read statically: {note.reason}\n"
    if report.unresolved_launches:
        count = report.unresolved_launches
        text += f"{count} launch{'es' if count != 1 else ''} could not be read statically\n"
    if not (errors or warnings or notes):
        return text + f"no findings in {report.seen} file{'s' if report.seen != 1 else ''}\n"
    counts = [
        f"{n} {word}{'s' if n != 1 else ''}"
        for n, word in ((errors, "error"), (warnings, "warning"), (notes, "note"))
        if n
    ]
    return text + f"{', '.join(counts)} in {files} file{'s' if files != 1 else ''} ({report.seen} looked at)\n"
