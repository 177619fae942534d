"""Every rule has a page whose Bad and Good blocks are true, a remedy, evidence, and a place in the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_kvoffload.lint import lint_text
from pytest_kvoffload.lint.registry import Entry, entries

BLOCK = re.compile(r"^```(?P<language>\w+) (?P<name>\S+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).parents[2]
CODES = sorted(entries())


def blocks(entry: Entry, heading: str) -> list[tuple[str, str]]:
    """Return file name and text of the blocks under ``Bad:`` or ``Good:``."""
    parts = re.split(r"^(Bad|Good):$", entry.page, flags=re.MULTILINE)
    return [
        (match["name"], match["text"])
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
        if title == heading
        for match in BLOCK.finditer(body)
    ]


def findings(name: str, text: str) -> list[tuple[str, str, str]]:
    """Lint with everything switched on."""
    found = lint_text(name, text, severity="note", pedantic=True)
    return [(d.code, d.severity, d.message) for d in found]


@pytest.mark.parametrize("code", CODES)
def test_bad_blocks_are_found(code: str) -> None:
    entry = entries()[code]
    examples = blocks(entry, "Bad")
    assert examples, f"{code} has no Bad block"
    for name, text in examples:
        found = findings(name, text)
        assert code in {c for c, _, _ in found}, f"{code} is not found in its own Bad block: {found}\n{text}"


@pytest.mark.parametrize("code", CODES)
def test_good_blocks_are_clean(code: str) -> None:
    entry = entries()[code]
    examples = blocks(entry, "Good")
    assert examples, f"{code} has no Good block"
    for name, text in examples:
        found = findings(name, text)
        assert code not in {c for c, _, _ in found}, f"{code} is found in its own Good block: {found}"
        assert not [f for f in found if f[1] == "error"], f"the Good block of {code} has an error of another rule"


@pytest.mark.parametrize("code", CODES)
def test_rules_say_what_to_do_and_why(code: str) -> None:
    entry = entries()[code]
    rule = entry.rule
    assert rule.remedy
    assert not rule.remedy.endswith("."), "remedies are clauses: the renderer ends the sentence"
    assert rule.evidence
    assert rule.summary
    assert not rule.summary.endswith(".")
    assert len(entry.page.split("\n\n")) >= 3, "a page says what is found and why it matters before its examples"
    assert entry.check or entry.check_document or code == "KVO910"


def test_codes_and_names_are_unique() -> None:
    names = [entry.rule.name for entry in entries().values()]
    assert len(names) == len(set(names))
    files = [p.name for p in (ROOT / "pytest_kvoffload/lint/rules").glob("kvo*.py")]
    assert len(files) == len(names)
    for code, entry in entries().items():
        assert f"{code.lower()}_{entry.rule.name.replace('-', '_')}.py" in files


def test_the_table_of_the_documentation_is_generated() -> None:
    from pytest_kvoffload.output.lint_rules import markdown

    page = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    assert markdown(list(entries().values())) in page, "run: python -m pytest_kvoffload rules --format markdown"
