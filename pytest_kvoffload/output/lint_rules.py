"""The rules themselves: a table for the terminal and the documentation, and the page of one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pytest_kvoffload.lint.registry import Entry


def page(entry: Entry) -> str:
    """Return the page of one rule: what it is, and its docstring."""
    rule = entry.rule
    facts = [
        f"severity: {rule.severity}, confidence: {rule.confidence}"
        + (", only with --pedantic" if rule.pedantic else ""),
        f"holds for: {rule.versions}",
        f"what to do: {rule.remedy}",
        f"evidence: {rule.evidence}",
    ]
    if rule.fixable:
        facts.append("kvoffload lint --fix can mend it where the text allows")
    return f"{rule.code} {rule.name}\n{'=' * len(rule.code + rule.name)}=\n\n{entry.page}\n\n" + "\n".join(facts)


def table(entries: Sequence[Entry]) -> str:
    """Return one line a rule."""
    width = max((len(e.rule.name) for e in entries), default=0)
    rows = [
        f"{e.rule.code}  {e.rule.name:<{width}}  {e.rule.severity:<7}  {e.rule.summary}"
        + ("  (--pedantic)" if e.rule.pedantic else "")
        for e in entries
    ]
    return "\n".join(rows) + "\n"


def markdown(entries: Sequence[Entry]) -> str:
    """Return the table of the documentation."""
    rows = ["| code | name | severity | holds for | what it finds |", "|---|---|---|---|---|"]
    for e in entries:
        rule = e.rule
        severity = f"{rule.severity} (`--pedantic`)" if rule.pedantic else rule.severity
        summary = rule.summary.replace("|", "\\|")
        rows.append(f"| {rule.code} | `{rule.name}` | {severity} | {rule.versions} | {summary} |")
    return "\n".join(rows) + "\n"


def as_json(entries: Sequence[Entry]) -> str:
    """Return the rules as JSON."""
    data = [
        {
            "code": e.rule.code,
            "name": e.rule.name,
            "severity": e.rule.severity,
            "confidence": e.rule.confidence,
            "versions": e.rule.versions,
            "summary": e.rule.summary,
            "remedy": e.rule.remedy,
            "evidence": e.rule.evidence,
            "pedantic": e.rule.pedantic,
            "fixable": e.rule.fixable,
        }
        for e in entries
    ]
    return json.dumps(data, indent=2) + "\n"
