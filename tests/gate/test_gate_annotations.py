"""Where an annotation stands: at the key that a change touched, as the file is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kvoffload.gate.verdict import Finding, Outcome, Verdict
from pytest_kvoffload.output.gate_annotations import annotation_lines, changed_lines, table_line

OLD = """# tiers
[engine]
kind = "cpu"
num_gpu_blocks = 80

[connectors.other]
kind = "native"
size_gib = 1

[connectors.native]
kind = "native"
size_gib = 4  # GiB
block_size = 64
extra.eviction_policy = "lru"

[gate]
requests = 600
"""


def verdict(outcome: Outcome) -> Verdict:
    return Verdict(
        reference="a",
        candidate="b",
        findings=(Finding(name="x", outcome=outcome, text="y 5%"),),
        requests_per_arm=1,
        boots_per_arm=1,
        calibration="none",
    )


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("size_gib = 4 ", "size_gib = 8 ", [(12, "connectors.native.size_gib has another value")]),
        ("block_size = 64", "block_size = 64\nargs = []", [(14, "connectors.native.args is new")]),
        ("block_size = 64\n", "", [(10, "connectors.native.block_size is gone")]),
        ('"lru"', '"arc"', [(14, "connectors.native.extra.eviction_policy has another value")]),
        ("num_gpu_blocks = 80", "num_gpu_blocks = 90", [(4, "engine.num_gpu_blocks has another value")]),
        ("num_gpu_blocks = 80\n", "", [(2, "engine.num_gpu_blocks is gone")]),
        ("size_gib = 1", "size_gib = 2", []),
        ("requests = 600", "requests = 900", []),
        ("# tiers\n", "# tiers and more\n\n", []),
        (
            '[engine]\nkind = "cpu"\nnum_gpu_blocks = 80\n',
            "",
            [(7, "engine.kind is gone"), (7, "engine.num_gpu_blocks is gone")],
        ),
    ],
)
def test_the_line_of_each_key_that_changed(before: str, after: str, found: list[tuple[int, str]]) -> None:
    assert before in OLD
    assert changed_lines(OLD.replace(before, after), OLD, "native") == found


def test_several_keys_begin_with_the_connectors_own() -> None:
    text = OLD.replace("= 80", "= 90").replace("= 4 ", "= 8 ")
    assert [line for line, _ in changed_lines(text, OLD, "native")] == [12, 4]


def test_a_pyproject_is_looked_into() -> None:
    text = '[project]\nname = "x"\n\n[tool.kvoffload.connectors.native]\nkind = "native"\nsize_gib = 1\n'
    assert changed_lines(text.replace("= 1", "= 2"), text, "native") == [
        (6, "connectors.native.size_gib has another value")
    ]
    assert table_line(text, "native") == 4


@pytest.mark.parametrize(
    ("text", "connector", "line"),
    [(OLD, "native", 10), (OLD, None, 6), (OLD, "gone", 6), ("", None, 1), ('["connectors"."native"]\n', "native", 1)],
)
def test_without_a_reference_it_is_the_table(text: str, connector: str | None, line: int) -> None:
    assert table_line(text, connector) == line


def test_a_reference_that_is_no_toml_points_at_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    config = tmp_path / "ci" / "kvoffload.toml"
    config.parent.mkdir()
    config.write_text(OLD)
    (line,) = annotation_lines(verdict("fail"), config=config, connector="native", reference="[[[")
    assert line == "::error file=ci/kvoffload.toml,line=10,title=KV offload gate::x: y 5%25"


def test_the_annotation_names_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    config = tmp_path / "kvoffload.toml"
    config.write_text(OLD.replace("= 4 ", "= 8 ").replace("= 80", "= 90"))
    (line,) = annotation_lines(verdict("inconclusive"), config=config, connector="native", reference=OLD)
    assert line == (
        "::warning file=kvoffload.toml,line=12,title=KV offload gate::x: y 5%25"
        "%0Achanged: connectors.native.size_gib has another value (line 12)"
        "%0Achanged: engine.num_gpu_blocks has another value (line 4)"
    )
    assert annotation_lines(verdict("pass"), config=config, connector="native", reference=OLD) == []
