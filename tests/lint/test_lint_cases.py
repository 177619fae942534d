"""Whole files with what must be said about them: ``cases/NAME/expect.toml``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.lint import lint_text
from pytest_kvoffload.lint.model import Diagnostic

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = sorted(p for p in (Path(__file__).parent / "cases").iterdir() if p.is_dir())


def lint_case(folder: Path) -> list[tuple[str, Diagnostic]]:
    """Lint every file of the case at the default level."""
    found: list[tuple[str, Diagnostic]] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "expect.toml":
            name = path.relative_to(folder).as_posix()
            found.extend((name, d) for d in lint_text(name, path.read_text(encoding="utf-8")))
    return found


def expected(folder: Path) -> list[dict[str, Any]]:
    """Read what must be found."""
    findings: list[dict[str, Any]] = tomllib.loads((folder / "expect.toml").read_text(encoding="utf-8"))["findings"]
    return findings


@pytest.mark.parametrize("folder", CASES, ids=lambda p: p.name)
def test_case(folder: Path) -> None:
    found = lint_case(folder)
    shown = [(name, d.location.line, d.severity, d.code, d.message) for name, d in found]
    wanted = expected(folder)
    for want in wanted:
        hits = [
            d
            for name, d in found
            if name == want["file"]
            and d.location.line == want["line"]
            and (d.severity == "error" or want["severity"] != "error")
            and want.get("code", d.code) == d.code
        ]
        assert hits, f"not found: {want}\nfound: {shown}"
    places = {(want["file"], want["line"]) for want in wanted}
    wrong = [s for s in shown if s[2] == "error" and (s[0], s[1]) not in places]
    assert not wrong, f"errors at places where nothing is wrong: {wrong}"
    if not wanted:
        assert not shown, f"must be silent: {shown}"
