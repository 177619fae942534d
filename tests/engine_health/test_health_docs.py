"""The pages on failures and on doctor say what the code says."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_kvoffload.catalog.failures import load_failures
from pytest_kvoffload.commands import doctor

DOCS = Path(__file__).parents[2] / "docs"


def table() -> str:
    """The table of docs/boot-failures.md, from the catalog: print it to mend the page."""
    rows = ["| class | what the log says (first spelling) | what to do |", "|---|---|---|"]
    for failure in load_failures().failure:
        said = failure.match[0].cause.replace("{", "<").replace("}", ">").replace("|", "\\|")
        kind = "" if failure.kind == "cause" else f" ({failure.kind})"
        rows.append(f"| `{failure.cls}`{kind} | {said} | {failure.remedy} |")
    return "\n".join(rows)


def test_the_page_of_failures_lists_every_class() -> None:
    assert table() in (DOCS / "boot-failures.md").read_text(encoding="utf-8")


def test_the_page_of_doctor_names_every_option() -> None:
    parser = argparse.ArgumentParser()
    doctor.build_parser(parser)
    page = (DOCS / "doctor.md").read_text(encoding="utf-8")
    options = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    assert [option for option in options if option != "--help" and f"`{option}" not in page] == []
