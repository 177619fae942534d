"""The pages name everything that there is, and their numbers are those of the code."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

from pytest_kvoffload import assertions
from pytest_kvoffload.assertions.failure import Outcome
from pytest_kvoffload.assertions.latency import MINIMUM_PAIRS
from pytest_kvoffload.records import WorkloadConfig
from pytest_kvoffload.stats import smallest_n
from pytest_kvoffload.workload.modes import MODES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_assertion_and_outcome_has_its_place() -> None:
    text = (DOCS / "assertions.md").read_text(encoding="utf-8")
    missing = [name for name in assertions.__all__ if name.startswith("assert_") and f"`{name}(" not in text]
    assert missing == []
    assert [name for name in get_args(Outcome) if f"| `{name}` |" not in text] == []


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    text = (DOCS / "assertions.md").read_text(encoding="utf-8")
    assert f"`assert_ttft_p95_bounded(m, bound)` | p95 | {smallest_n(0.95)} |" in text
    assert f"`assert_ttft_p99_bounded(m, bound)` | p99 | {smallest_n(0.99)} |" in text
    assert f"{smallest_n(0.99, 0.95)} requests for a p99" in text
    assert text.count(f"| {MINIMUM_PAIRS} pairs |") == 2
    defaults = inspect.signature(assertions.assert_offload_helps).parameters
    for name in ("min_hit_rate", "tail_factor", "tail_slack_seconds"):
        assert f"`{name}` ({defaults[name].default:g})" in text
    assert f"`1 - min_gain` ({1 - defaults['min_gain'].default:g})" in text


def test_every_mode_and_every_key_of_the_workload_has_its_row() -> None:
    text = (DOCS / "workload.md").read_text(encoding="utf-8")
    assert [mode for mode in MODES if f"| `{mode}` |" not in text] == []
    assert [key for key in WorkloadConfig.__dataclass_fields__ if f"`{key}`" not in text] == []
