"""Findings as GitHub workflow commands, which become annotations of the pull request."""

from __future__ import annotations

from pytest_kvoffload.lint.run import Report

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def render(report: Report) -> str:
    """Return one workflow command a finding."""
    lines = []
    for d in report.diagnostics:
        where = d.location
        properties = (
            f"file={_property(where.path)},line={where.line},col={where.column},title={_property(f'{d.code} {d.name}')}"
        )
        lines.append(f"::{LEVELS[d.severity]} {properties}::{_data(f'{d.message}. {d.remedy}')}\n")
    return "".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
