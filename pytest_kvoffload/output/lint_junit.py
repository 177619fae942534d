"""Findings as JUnit XML, for systems that only know test results."""

from __future__ import annotations

from xml.etree import ElementTree

from pytest_kvoffload.lint.run import Report


def render(report: Report) -> str:
    """Return one test case a finding: errors and warnings are failures, notes pass with their text as output."""
    failures = report.count("error") + report.count("warning")
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name="kvoffload lint",
        tests=str(max(len(report.diagnostics), 1)),
        failures=str(failures),
        errors="0",
        skipped="0",
    )
    for d in report.diagnostics:
        where = d.location
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_clean(where.path),
            name=f"{d.code} {d.name} {where.line}:{where.column}",
            file=_clean(where.path),
            line=str(where.line),
        )
        text = _clean(f"{where.path}:{where.line}:{where.column}: {d.message}\n{d.remedy}")
        if d.severity == "note":
            ElementTree.SubElement(case, "system-out").text = text
        else:
            ElementTree.SubElement(case, "failure", message=_clean(d.message), type=d.severity).text = text
    if not report.diagnostics:
        ElementTree.SubElement(suite, "testcase", classname="kvoffload lint", name="no findings")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    """Drop what XML 1.0 cannot carry."""
    return "".join(
        c for c in text if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c >= "\U00010000"
    )
