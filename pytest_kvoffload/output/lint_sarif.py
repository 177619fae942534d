"""Findings as SARIF 2.1.0 for code scanning: all rules listed, relative paths, fingerprints that survive edits."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from pytest_kvoffload._version import __version__
from pytest_kvoffload.lint.model import Diagnostic
from pytest_kvoffload.lint.registry import Entry, entries
from pytest_kvoffload.lint.run import FileResult, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "kvoffloadContent/v1"


def render(report: Report, *, root: Path | None = None) -> str:
    """Return the SARIF log. ``root`` is what paths are made relative to (default: the working directory)."""
    base = (root or Path.cwd()).resolve()
    rules = list(entries().values())
    index = {entry.rule.code: i for i, entry in enumerate(rules)}
    results: list[dict[str, Any]] = []
    for file in report.files:
        seen: Counter[str] = Counter()
        for d in file.diagnostics:
            key = _content_key(d, file)
            results.append(_result(d, index[d.code], _relative(d.location.path, base), f"{key}:{seen[key]}"))
            seen[key] += 1
    driver = {
        "name": "kvoffload lint",
        "semanticVersion": _semantic(__version__),
        "version": __version__,
        "rules": [_rule(entry) for entry in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {
                        "level": "note",
                        "message": {"text": f"cannot be read statically: {u.reason}"},
                        "locations": [_location(_relative(u.location.path, base), u.location.line, u.location.column)],
                    }
                    for u in report.unresolved
                ],
            }
        ],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _semantic(version: str) -> str:
    parts = version.split("+")[0].split(".")
    return ".".join([*parts, "0", "0"][:3]) if all(p.isdigit() for p in parts[:3]) else "0.0.0"


def _rule(entry: Entry) -> dict[str, Any]:
    rule = entry.rule
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {
            "text": entry.page.split("\n\n")[1].replace("\n", " ") if "\n\n" in entry.page else rule.summary
        },
        "help": {"text": f"{rule.remedy}\n\n{entry.page}", "markdown": entry.page},
        "defaultConfiguration": {"level": rule.severity, "enabled": not rule.pedantic},
        "properties": {
            "tags": ["kv-cache", "vllm"],
            "precision": {"high": "high", "medium": "medium", "low": "low"}[rule.confidence],
            "problem.severity": {"error": "error", "warning": "warning", "note": "recommendation"}[rule.severity],
        },
    }


def _result(d: Diagnostic, index: int, uri: str, fingerprint: str) -> dict[str, Any]:
    return {
        "ruleId": d.code,
        "ruleIndex": index,
        "level": d.severity,
        "message": {"text": f"{d.message}. {d.remedy}"},
        "locations": [_location(uri, d.location.line, d.location.column)],
        "partialFingerprints": {FINGERPRINT: fingerprint},
    }


def _location(uri: str, line: int, column: int) -> dict[str, Any]:
    artifact: dict[str, Any] = {"uri": uri}
    if not uri.startswith("file:"):
        artifact["uriBaseId"] = "%SRCROOT%"
    region = {"startLine": max(line, 1), "startColumn": max(column, 1)}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}


def _relative(path: str, base: Path) -> str:
    """Return a relative URI below ``base``, or an absolute one for what lies outside."""
    pure = PurePath(path)
    if pure.is_absolute():
        try:
            return quote(pure.relative_to(base).as_posix())
        except ValueError:
            return Path(path).as_uri()
    return quote(pure.as_posix())


def _content_key(d: Diagnostic, file: FileResult) -> str:
    """Hash the rule, the file and the line's own text: moving the line keeps the fingerprint."""
    lines = file.text.splitlines()
    text = lines[d.location.line - 1].strip() if 1 <= d.location.line <= len(lines) else ""
    content = "\0".join((d.code, PurePath(d.location.path).as_posix(), " ".join(text.split())))
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:32]
