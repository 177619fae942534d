"""Histogram quantiles: Prometheus' rules one by one, the bounds of the truth, and what may be claimed."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kvoffload.metrics.quantiles import (
    Histogram,
    bucket_quantile,
    claim_below,
    minimum_count,
    quantile,
    repaired,
)

INF = math.inf
LATENCIES = ((0.1, 50.0), (0.5, 90.0), (1.0, 98.0), (INF, 100.0))


def hist(*buckets: tuple[float, float], name: str = "ttft") -> Histogram:
    count = max((c for _, c in buckets), default=0.0)
    return Histogram(name=name, buckets=tuple(buckets), count=count, sum=0.0)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (0.5, 0.1),  # exactly at a bucket's count
        (0.25, 0.05),  # from zero in the lowest bucket
        (0.7, 0.3),  # linear inside a bucket
        (0.99, 1.0),  # in +Inf: the bound below
        (1.0, 1.0),
        (0.0, 0.0),
        (-0.1, -INF),
        (1.1, INF),
    ],
)
def test_value_as_prometheus_computes_it(q: float, expected: float) -> None:
    assert bucket_quantile(q, LATENCIES) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "buckets",
    [
        (),
        ((INF, 5.0),),  # fewer than two buckets
        ((1.0, 5.0), (2.0, 6.0)),  # no +Inf
        ((1.0, 0.0), (INF, 0.0)),  # no observations
    ],
)
def test_not_a_number_where_there_is_nothing_to_read(buckets: tuple[tuple[float, float], ...]) -> None:
    assert math.isnan(bucket_quantile(0.5, buckets))


def test_not_a_number_for_a_quantile_that_is_none_and_for_an_empty_lowest_bucket_at_zero() -> None:
    assert math.isnan(bucket_quantile(math.nan, LATENCIES))
    assert math.isnan(bucket_quantile(0.0, ((1.0, 0.0), (2.0, 3.0), (INF, 3.0))))


def test_a_lowest_bucket_that_is_not_positive_answers_with_its_bound() -> None:
    assert bucket_quantile(0.3, ((-1.0, 5.0), (1.0, 10.0), (INF, 10.0))) == -1.0
    assert bucket_quantile(0.3, ((0.0, 5.0), (1.0, 10.0), (INF, 10.0))) == 0.0


def test_equal_bounds_are_merged_and_falling_counts_lifted() -> None:
    assert repaired([(INF, 9.0), (1.0, 2.0), (1.0, 3.0), (2.0, 4.0), (3.0, 6.0)]) == [
        (1.0, 5.0),
        (2.0, 5.0),
        (3.0, 6.0),
        (INF, 9.0),
    ]


def test_rounding_noise_between_buckets_is_no_observation() -> None:
    noise = 100.0 * (1 + 1e-13)
    assert repaired([(1.0, 100.0), (2.0, noise), (INF, 100.0 * (1 - 1e-13))]) == [
        (1.0, 100.0),
        (2.0, 100.0),
        (INF, 100.0),
    ]
    assert repaired([(1.0, 100.0), (2.0, 100.1), (INF, 101.0)])[1] == (2.0, 100.1)
    assert repaired([(1.0, 0.0), (2.0, 1e-300), (INF, 1.0)])[1] == (2.0, 1e-300)


@pytest.mark.parametrize(
    ("q", "lower", "upper", "capped"),
    [(0.5, 0.0, 0.1, False), (0.51, 0.1, 0.5, False), (0.98, 0.5, 1.0, False), (0.99, 1.0, INF, True)],
)
def test_the_bounds_between_which_the_truth_lies(q: float, lower: float, upper: float, capped: bool) -> None:
    found = quantile(hist(*LATENCIES), q)
    assert (found.lower, found.upper, found.capped, found.count) == (lower, upper, capped, 100)


def test_bounds_at_the_edges() -> None:
    assert quantile(hist((-1.0, 5.0), (1.0, 10.0), (INF, 10.0)), 0.3).lower == -INF
    # The smallest observation is not in an empty bucket.
    assert quantile(hist((1.0, 0.0), (2.0, 3.0), (INF, 3.0)), 0.0).lower == 1.0
    empty = quantile(hist((1.0, 0.0), (INF, 0.0)), 0.5)
    assert math.isnan(empty.value)
    assert math.isnan(empty.lower)
    with pytest.raises(ValueError, match=r"a quantile lies in \[0, 1\], not 1\.5"):
        quantile(hist(*LATENCIES), 1.5)


@pytest.mark.parametrize(
    ("q", "bound", "verdict", "why"),
    [
        (0.5, 0.1, "holds", r"the p50 of ttft lies in \(0, 0\.1\], at or below 0\.1"),
        (0.95, 0.4, "fails", r"the p95 of ttft lies in \(0\.5, 1\], above 0\.4"),
        (0.95, 0.5, "fails", r"above 0\.5"),
        (0.95, 0.7, "unknown", r"whether that is at or below 0\.7, no bucket bound tells"),
        (0.99, 5.0, "unknown", r"lies in \(1, inf\]"),
        (0.99, 0.9, "fails", r"above 0\.9"),
        (0.999, 5.0, "unknown", "100 observations of ttft cannot carry a p99.9: it needs 1000"),
    ],
)
def test_a_claim_is_made_only_where_the_data_carries_it(q: float, bound: float, verdict: str, why: str) -> None:
    import re

    claim = claim_below(hist(*LATENCIES), q, bound)
    assert claim.verdict == verdict
    assert re.search(why, claim.reason)


def test_no_observations_is_no_claim() -> None:
    claim = claim_below(hist((1.0, 0.0), (INF, 0.0)), 0.5, 10)
    assert (claim.verdict, claim.reason) == ("unknown", "ttft has no observations")


def test_observations_needed() -> None:
    assert [minimum_count(q) for q in (0.0, 0.5, 0.9, 0.95, 0.99, 0.999)] == [1, 2, 10, 20, 100, 1000]
    with pytest.raises(ValueError, match=r"needs a quantile in \[0, 1\)"):
        minimum_count(1.0)


def test_mean() -> None:
    assert Histogram(name="x", buckets=(), count=4, sum=2.0).mean == 0.5
    assert Histogram(name="x", buckets=(), count=0, sum=0.0).mean is None


# ------------------------------------------------------------------------------------------------------------ laws
BOUNDS = st.lists(st.floats(0.001, 1000), min_size=1, max_size=8, unique=True).map(sorted)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    bounds = [*draw(BOUNDS), INF]
    counts = accumulate(draw(st.lists(st.integers(0, 50), min_size=len(bounds), max_size=len(bounds))))
    return hist(*((bound, float(count)) for bound, count in zip(bounds, counts, strict=True)))


@given(histograms(), st.floats(0, 1), st.floats(0, 1))
def test_a_quantile_is_monotone_in_q(histogram: Histogram, a: float, b: float) -> None:
    low, high = sorted((a, b))
    values = quantile(histogram, low), quantile(histogram, high)
    assert not values[0].lower > values[1].lower
    assert not values[0].upper > values[1].upper
    if not math.isnan(values[0].value):
        assert not values[0].value > values[1].value * (1 + 1e-12)


@given(histograms(), st.floats(0.001, 1))
def test_the_value_lies_within_the_bounds(histogram: Histogram, q: float) -> None:
    found = quantile(histogram, q)
    if not math.isnan(found.value):
        assert found.lower * (1 - 1e-12) <= found.value <= found.upper * (1 + 1e-12)


@given(st.lists(st.floats(0.0001, 100), min_size=1, max_size=60), BOUNDS, st.floats(0.001, 1))
def test_the_truth_lies_within_the_bounds(samples: list[float], bounds: list[float], q: float) -> None:
    counts = [(bound, float(sum(sample <= bound for sample in samples))) for bound in [*bounds, INF]]
    found = quantile(hist(*counts), q)
    # The same product as in the code under test: the rank is a float there too.
    rank = max(1, math.ceil(q * float(len(samples))))
    truth = sorted(samples)[rank - 1]
    assert found.lower < truth or (found.lower == 0.0 and truth >= 0)
    assert truth <= found.upper


@given(st.lists(st.floats(0.0001, 100), min_size=2, max_size=60), BOUNDS, st.floats(0.0001, 100))
def test_a_claim_never_contradicts_the_samples(samples: list[float], bounds: list[float], bound: float) -> None:
    counts = [(le, float(sum(sample <= le for sample in samples))) for le in [*bounds, INF]]
    truth = sorted(samples)[math.ceil(0.5 * len(samples)) - 1]
    verdict = claim_below(hist(*counts), 0.5, bound).verdict
    assert verdict == "unknown" or (verdict == "holds") == (truth <= bound)
