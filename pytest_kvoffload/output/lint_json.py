"""Findings as versioned JSON, separate from the records inside."""

from __future__ import annotations

import json

from pytest_kvoffload.lint.run import Report

SCHEMA_VERSION = 1


def render(report: Report) -> str:
    """Return ``{"schema_version", "diagnostics", "unresolved", ...}``."""
    data = {
        "schema_version": SCHEMA_VERSION,
        "diagnostics": [
            {
                "code": d.code,
                "name": d.name,
                "severity": d.severity,
                "confidence": d.confidence,
                "path": d.location.path,
                "line": d.location.line,
                "column": d.location.column,
                "message": d.message,
                "remedy": d.remedy,
                "versions": d.versions,
                "evidence": d.evidence,
                "fixable": bool(d.fix),
            }
            for d in report.diagnostics
        ],
        "unresolved": [
            {"path": u.location.path, "line": u.location.line, "column": u.location.column, "reason": u.reason}
            for u in report.unresolved
        ],
        "unresolved_launches": report.unresolved_launches,
        "skipped": [{"path": path, "reason": reason} for path, reason in report.skipped],
        "files": report.seen,
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
