"""Mutated inputs of every format never crash the rules. ``KVOFFLOAD_FUZZ_EXAMPLES`` raises the budget."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_kvoffload.lint import lint_text
from pytest_kvoffload.lint.fix import apply_fixes
from pytest_kvoffload.lint.run import FileResult, Report
from pytest_kvoffload.output import lint_github, lint_json, lint_junit, lint_sarif
from pytest_kvoffload.output import lint_text as text_renderer

EXAMPLES = int(os.environ.get("KVOFFLOAD_FUZZ_EXAMPLES", "150"))
SEEDS = [
    (path.name, path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent / "cases").rglob("*"))
    if path.is_file() and path.name != "expect.toml"
]
PIECES = [
    "{", "}", "[", "]", '"', "'", ":", ",", "\\", "\n", "  ", "\t", "$", "${X}", "$(", "{{ .V }}", "null", "true", "-1",
    "1e999", "NaN", "Infinity", "9" * 400, "\0", "\ufeff", "\ud7ff", "é", "--", "--kv-offloading-size", "&a", "*a", "|",
    "--kv-transfer-config", "LMCACHE_", "<<EOF\n", "#", "kv_connector", "8G", "''", '""', "- ", "? ", "!!", "env:", ">",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a seed file with a few edits."""
    name, text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        piece = draw(st.sampled_from(PIECES) | st.text(max_size=8) | st.just(text[start:end] * 2))
        text = text[:start] + piece + text[end:]
    return name, text


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_rules_renderers_and_fixes_survive_anything(case: tuple[str, str]) -> None:
    name, text = case
    found = lint_text(name, text, severity="note", pedantic=True)
    report = Report(files=(FileResult(path=name, text=text, diagnostics=tuple(found)),), seen=1)
    for render in (text_renderer.render, lint_json.render, lint_github.render, lint_junit.render, lint_sarif.render):
        assert isinstance(render(report), str)
    fixed, count = apply_fixes(text, found)
    assert (fixed == text) or count
