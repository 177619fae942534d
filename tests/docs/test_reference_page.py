"""``docs/reference.md`` says what the code says."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        import generate_reference

        yield generate_reference


@pytest.fixture(scope="module")
def text(generator: ModuleType) -> str:
    page: str = generator.page()
    return page


def test_the_page_is_up_to_date(generator: ModuleType, text: str) -> None:
    written = (DOCS / "reference.md").read_text(encoding="utf-8")
    lines = difflib.unified_diff(
        written.splitlines(), text.splitlines(), "docs/reference.md", "the code", lineterm="", n=0
    )
    assert written == text, f"run '{generator.COMMAND}', then look at what changed:\n" + "\n".join(lines)


def test_a_change_of_the_code_shows(generator: ModuleType, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_kvoffload import cli

    monkeypatch.setitem(cli.COMMANDS, "demo", "run something else")
    after = generator.page()
    assert text != after
    assert "Run something else." in after


def test_an_environment_variable_without_a_sentence_is_refused(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(generator.VARIABLES, "KVOFFLOAD_CACHE_DIR")
    with pytest.raises(SystemExit, match=r"VARIABLES differs from the code in \['KVOFFLOAD_CACHE_DIR'\]"):
        generator.page()


@pytest.mark.parametrize(
    "words",
    [
        "`--kvoffload-html FILE`",
        "| `connector` | `str \\| None` |",
        "| `kvoffload_measurement` | function | `Measurement` |",
        "`assert_hit_rate_above(measurement: Measurement, threshold: float, *, tier: str \\| None = None",
        "| `native` |",
        "`secondary_tiers`",
        "| `thrash` |",
        "[PHASE.]METRIC regression [over ARM] CMP SHARE",
        "### kvoffload gate",
        "| 3 | inconclusive |",
        "| `first_token_at_seconds` | `float \\| None` |",
        "| `p_value` | `float \\| None` |",
        "| `KVOFFLOAD_DEVICE_LOCK` |",
    ],
)
def test_every_kind_of_thing_is_on_it(text: str, words: str) -> None:
    assert words in text
