"""Verdicts: recorded windows for every word that real traffic gave, constructed ones for the rest."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import pytest
from expositions import recorded
from hypothesis import given
from hypothesis import strategies as st

from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.meters import SCHEDULER, Meters, read_meters
from pytest_kvoffload.metrics.prefill import PrefillCost
from pytest_kvoffload.metrics.quantiles import Histogram
from pytest_kvoffload.metrics.readings import HistogramReading, Reading
from pytest_kvoffload.metrics.verdict import judge


@functools.cache
def window(server: str, before: str, after: str) -> Meters:
    found = delta(recorded(server, before), recorded(server, after, at_seconds=10))
    return read_meters(found, vllm_version="0.32.0")


def number(value: float, name: str = "x") -> Reading:
    return Reading(value=value, metric=name, unit="")


def histogram(count: float, total: float) -> HistogramReading:
    return HistogramReading(
        histogram=Histogram(name="h", buckets=((float("inf"), count),), count=count, sum=total),
        metric="h",
        unit="seconds",
    )


def weighed(load_seconds: float, *, requests: float = 100, low: float = 1e-4, high: float = 2e-4) -> Meters:
    """10,000 tokens from the tier; computing them takes 1 to 2 s unless said otherwise."""
    base = window("0.32.0-host", "cold", "restored")
    hits: Mapping[str, Reading] = {**base.hit_tokens, "external": number(10_000)}
    return replace(
        base,
        hit_tokens=hits,
        prompt_tokens=number(20_000),
        load_seconds=number(load_seconds),
        lookup_sync={SCHEDULER: histogram(100, 0.0)},
        ttft=histogram(requests, 10.0),
        prefill_cost=PrefillCost(
            seconds_per_token_low=low,
            seconds_per_token_high=high,
            computed_tokens=50_000,
            requests=100,
            scope="window",
        ),
    )


@pytest.mark.parametrize(
    ("server", "before", "after", "word", "reason"),
    [
        ("0.32.0-host", "cold", "restored", "helping", "restoring 15360 tokens took 0.118 s, computing them takes"),
        ("0.32.0-fs", "cold", "restored", "helping", "restoring 15360 tokens took"),
        ("0.32.0-host", "boot", "cold", "no reuse", "neither the device (0.0%) nor the tier (0.0%) had"),
        ("0.32.0-host", "restored", "resident", "not needed", "the device cache served the repeats (96.0%"),
        ("0.32.0-off", "cold", "restored", "not exercised", "the server shows no KV connector"),
        ("0.32.0-host", "cold", "cold", "not exercised", "no prompt was processed in the window"),
    ],
)
def test_real_windows(server: str, before: str, after: str, word: str, reason: str) -> None:
    verdict = judge(window(server, before, after))
    assert verdict.word == word
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("load_seconds", "word"), [(0.1, "helping"), (0.99, "helping"), (1.5, "unclear"), (2.5, "hurting"), (50, "hurting")]
)
def test_loads_are_weighed_against_both_bounds_of_computing(load_seconds: float, word: str) -> None:
    verdict = judge(weighed(load_seconds))
    assert verdict.word == word
    assert verdict.limits[0] == "no control ran: what storing costs the other requests does not show here"
    assert any("(50000 tokens of 100 requests, window)" in line for line in verdict.evidence)


def test_lookups_count_as_cost() -> None:
    slow = replace(weighed(0.1), lookup_async={SCHEDULER: histogram(100, 30.0)})
    verdict = judge(slow)
    assert verdict.word == "hurting"
    assert "The lookup delay is the cause: for 100% of that time requests waited for lookups" in verdict.reason


def test_a_tier_without_a_load_meter_is_not_judged() -> None:
    silent = replace(weighed(0.1), load_seconds=Reading(value=None, metric="m", unit="", reason="not exposed"))
    verdict = judge(silent)
    assert verdict.word == "unclear"
    assert verdict.reason == (
        "the tier supplied 50.0% of the prompt tokens, but what restoring cost is not exposed (not exposed)"
    )


def test_too_few_requests_and_no_price() -> None:
    assert "4 requests are too few to judge, 5 are needed" in judge(weighed(0.1, requests=4)).reason
    assert "there is no price" in judge(replace(weighed(0.1), prefill_cost=None)).reason


def test_a_tier_that_is_too_small_to_store_was_not_exercised() -> None:
    base = window("0.32.0-host", "boot", "cold")
    verdict = judge(replace(base, allocation_failures=number(12), store_bytes=number(0)))
    assert verdict.word == "not exercised"
    assert "12 stores found no room in it" in verdict.reason


def test_what_limits_a_verdict_is_said() -> None:
    queued = replace(weighed(0.1), queue=histogram(100, 60.0), cache_config={"enable_prefix_caching": "False"})
    verdict = judge(replace(queued, caveats=("2 counters went back",)))
    assert verdict.limits[0] == "2 counters went back"
    assert "requests queued for 60 s together, and loads and lookups explain 0.1 s of it" in verdict.limits[2]
    assert verdict.limits[3].startswith("prefix caching is off")


@given(st.floats(0.001, 10), st.floats(0.001, 10), st.floats(1e-6, 1e-3), st.floats(1, 5))
def test_a_slower_tier_is_never_judged_better(a: float, b: float, low: float, factor: float) -> None:
    order = {"helping": 0, "unclear": 1, "hurting": 2}
    fast, slow = sorted((a, b))
    words = [judge(weighed(seconds, low=low, high=low * factor)).word for seconds in (fast, slow)]
    assert order[words[0]] <= order[words[1]]
