"""The two rows of blocks: what can be read off them, and that they fit."""

from __future__ import annotations

import dataclasses
import random

import pytest
from markdown_it import MarkdownIt

from pytest_kvoffload.gate.spread import BINS, Spread, spread_of
from pytest_kvoffload.gate.verdict import Finding, Verdict
from pytest_kvoffload.output.gate_plot import BLOCKS, LABEL_WIDTH, plot
from pytest_kvoffload.output.gate_text import MARKDOWN_LIMIT, markdown
from pytest_kvoffload.records import to_json


def spread(reference: list[float], candidate: list[float]) -> Spread:
    found = spread_of(reference, candidate, phase="restored")
    assert found is not None
    return found


def rows(made: Spread) -> tuple[str, str]:
    _, one, two, _ = plot(made).splitlines()
    return one[LABEL_WIDTH : LABEL_WIDTH + BINS], two[LABEL_WIDTH : LABEL_WIDTH + BINS]


def test_a_slower_tail_is_seen_at_the_right_and_a_single_request_too() -> None:
    made = spread([0.010] * 99 + [0.020], [0.010] * 99 + [0.100])
    reference, candidate = rows(made)
    assert reference[0] == candidate[0] == "█"
    assert candidate[-1] == "▁"
    assert reference[-1] == " "
    assert reference.rstrip()[-1] == "▁"
    assert len(reference.rstrip()) == 15  # a fifth of a decade's log steps: 48 * log(2) / log(10)
    assert plot(made).splitlines()[0] == "TTFT of phase restored, 100 and 100 requests, logarithmic scale"
    assert plot(made).splitlines()[-1].split() == ["10ms", "31.6ms", "100ms"]


def test_every_request_is_counted_once() -> None:
    source = random.Random(1)
    times = [source.lognormvariate(-3, 0.7) for _ in range(500)]
    made = spread(times, times[:200])
    assert (sum(made.reference), sum(made.candidate)) == (500, 200)


@pytest.mark.parametrize("times", [[0.0], [1e-9, 1000.0], [0.02] * 5, [123.456] * 3 + [98765.4]])
def test_it_fits_whatever_the_times(times: list[float]) -> None:
    lines = plot(spread(times, times)).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 72
    assert set("".join(rows(spread(times, times)))) <= set(BLOCKS)


def test_an_arm_without_times_is_not_drawn() -> None:
    assert spread_of([], [0.1], phase="restored") is None


def test_the_summary_shows_it_as_code_and_stays_below_the_limit() -> None:
    finding = Finding(name="x", outcome="fail", text="y")
    one = Verdict(
        reference="a", candidate="b", findings=(finding,), requests_per_arm=2, boots_per_arm=1, calibration="none"
    )
    drawn = dataclasses.replace(one, spread=spread([0.01, 0.02], [0.01, 0.09]))
    html = MarkdownIt("commonmark").enable("table").render(markdown(drawn))
    assert '<pre><code class="language-text">TTFT of phase restored, 2 and 2 requests' in html
    assert "█" in html
    assert "<pre>" not in MarkdownIt("commonmark").enable("table").render(markdown(one))
    assert len(markdown(drawn)) - len(markdown(one)) < 1000 < MARKDOWN_LIMIT
    assert b'"edges_seconds"' in to_json(drawn)
