"""Deltas: what rose, what was reset, what appeared and what vanished; and the laws that hold for all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from expositions import URL, snapshot
from hypothesis import given
from hypothesis import strategies as st

from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.query import by_label, declared, histogram, label_values, level, series, total
from pytest_kvoffload.records import Delta, Sample, SampleKind, Snapshot

COUNTER = "# TYPE hits_total counter\n"
SUMMARY = '# TYPE s summary\ns{{quantile="0.5"}} {q}\ns_count {n}\ns_sum {total}\n'


def between(before: str, after: str, seconds: float = 10.0) -> Delta:
    return delta(snapshot(before), snapshot(after, at_seconds=seconds))


def hist(*counts: float, total_sum: float = 1.0, name: str = "lat") -> str:
    bounds = ["0.1", "1.0", "+Inf"]
    lines = [f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in zip(bounds, counts, strict=True)]
    return (
        f"# TYPE {name} histogram\n"
        + "\n".join([*lines, f"{name}_count {counts[-1]}", f"{name}_sum {total_sum}"])
        + "\n"
    )


def test_counter_gauge_and_untyped() -> None:
    found = between(
        COUNTER + "hits_total 3\n# TYPE load gauge\nload 7\nbare 5\n",
        COUNTER + "hits_total 10\n# TYPE load gauge\nload 4\nbare 2\n",
    )
    assert {s.name: (s.kind, s.before, s.after, s.increment) for s in found.samples} == {
        "hits_total": ("counter", 3, 10, 7),
        "load": ("gauge", 7, 4, -3),
        "bare": ("unknown", 5, 2, -3),
    }
    assert (found.seconds, found.resets, found.restarts, found.vanished) == (10.0, (), (), ())


def test_a_counter_that_went_down_was_reset_and_is_named() -> None:
    found = between(COUNTER + 'hits_total{engine="0"} 100\n', COUNTER + 'hits_total{engine="0"} 4\n')
    assert total(found, "hits_total") == 4
    assert found.resets == (f'hits{{endpoint="{URL}",engine="0"}}',)


def test_a_counter_that_was_created_anew_and_overtook_itself() -> None:
    page = COUNTER + "hits_total {n}\n# TYPE hits_created gauge\nhits_created {created}\n"
    found = between(page.format(n=5, created=1.7e9), page.format(n=9, created=1.7e9 + 60))
    assert total(found, "hits_total") == 9
    assert len(found.resets) == 1
    assert [s.name for s in found.samples] == ["hits_total"]


def test_a_gauge_that_happens_to_be_called_created_is_kept() -> None:
    found = between("# TYPE file_created gauge\nfile_created 1\n", "# TYPE file_created gauge\nfile_created 2\n")
    assert total(found, "file_created") == 1


def test_a_histogram_is_reset_as_a_whole() -> None:
    # The lowest bucket is larger than before, the count smaller: all of it belongs to the new process.
    found = between(hist(1, 5, 9), hist(2, 3, 4))
    read = histogram(found, "lat")
    assert read is not None
    assert read.buckets == ((0.1, 2.0), (1.0, 3.0), (math.inf, 4.0))
    assert read.count == 4
    assert len(found.resets) == 1


def test_a_sum_that_falls_alone_is_no_reset() -> None:
    found = between(hist(1, 2, 3, total_sum=5.0), hist(1, 2, 4, total_sum=3.0))
    assert total(found, "lat_sum") == -2.0
    assert found.resets == ()


def test_a_restarted_server_is_named_and_all_its_counters_start_anew() -> None:
    page = (
        "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n" + COUNTER + "hits_total {n}\n"
    )
    found = between(page.format(start=100, n=50), page.format(start=200, n=60))
    assert found.restarts == (URL,)
    assert total(found, "hits_total") == 60
    assert found.resets == ()


def test_a_restart_of_one_endpoint_leaves_the_counters_of_the_others_alone() -> None:
    def both(a: tuple[int, int], b: tuple[int, int], at_seconds: float) -> Snapshot:
        samples: list[Sample] = []
        for url, (start, value) in (("http://a", a), ("http://b", b)):
            page = f"process_start_time_seconds {start}\n{COUNTER}hits_total {value}\n"
            samples += snapshot(page, url=url).samples
        return replace(snapshot("x 1\n", at_seconds=at_seconds), urls=("http://a", "http://b"), samples=tuple(samples))

    found = delta(both((1, 50), (2, 70), 0), both((1, 55), (9, 80), 10))
    assert found.restarts == ("http://b",)
    assert by_label(found, "hits_total", "endpoint") == {"http://a": 5, "http://b": 80}


def test_summary_without_its_own_quantiles() -> None:
    found = between(SUMMARY.format(q=1, n=2, total=3), SUMMARY.format(q=9, n=5, total=4))
    assert {s.name: s.increment for s in found.samples} == {"s_count": 3, "s_sum": 1}


def test_series_that_appear_start_at_zero_and_series_that_vanish_are_named() -> None:
    found = between(COUNTER + 'hits_total{t="a"} 3\n', COUNTER + 'hits_total{t="b"} 4\n')
    (sample,) = found.samples
    assert (sample.before, sample.increment) == (None, 4)
    assert found.vanished == (f'hits{{endpoint="{URL}",t="a"}}',)


def test_values_that_are_not_finite_are_left_out() -> None:
    found = between("# TYPE g gauge\ng 1\n# TYPE h gauge\nh 1\n", "# TYPE g gauge\ng NaN\n# TYPE h gauge\nh 2\n")
    assert [s.name for s in found.samples] == ["h"]
    assert total(found, "g") is None


def test_snapshots_of_different_servers_or_in_the_wrong_order_are_refused() -> None:
    one, other = snapshot("a 1\n", at_seconds=5), snapshot("a 1\n", url="http://other/metrics")
    with pytest.raises(ValueError, match="snapshots of different endpoints cannot be compared"):
        delta(one, other)
    with pytest.raises(ValueError, match="the second snapshot is 5 s older than the first"):
        delta(one, snapshot("a 1\n", at_seconds=0))


def test_sums_over_engines_and_by_label() -> None:
    text = COUNTER + "".join(
        f'hits_total{{engine="{engine}",source="{source}"}} {value}\n'
        for engine, source, value in [(0, "a", 1), (0, "b", 2), (1, "a", 10), (1, "b", 20)]
    )
    found = between(COUNTER + 'hits_total{engine="0",source="a"} 0\n', text)
    assert total(found, "hits_total") == 33
    assert total(found, "hits_total", {"source": "b"}) == 22
    assert total(found, "hits_total", {"source": "c"}) is None
    assert by_label(found, "hits_total", "engine") == {"0": 3, "1": 30}
    assert by_label(found, "hits_total", "nothing") == {"": 33}
    assert label_values(found, "hits_total", "source") == ("a", "b")
    assert level(found, "hits_total", {"engine": "1"}) == 30


def test_names_with_and_without_total() -> None:
    found = between(
        COUNTER + "hits_total 0\n" + hist(0, 0, 0, name="iteration_tokens_total"),
        COUNTER + "hits_total 2\n# TYPE silent_total counter\n" + hist(1, 1, 2, name="iteration_tokens_total"),
    )
    assert total(found, "hits") == total(found, "hits_total") == 2
    assert declared(found, "hits")
    assert declared(found, "silent")
    assert declared(found, "silent_total")
    assert total(found, "silent_total") is None
    # A histogram whose name ends in _total is no counter without it.
    assert declared(found, "iteration_tokens_total")
    assert not declared(found, "iteration_tokens")
    assert series(found, "iteration_tokens") == ()
    assert not declared(found, "absent_total")


def test_histograms_with_different_buckets_add_up_where_they_share_a_bound() -> None:
    zero = "# TYPE lat histogram\n" + "".join(
        f"lat_{part} 0\n" for part in ('bucket{engine="0",le="1"}', 'bucket{engine="0",le="+Inf"}', 'count{engine="0"}')
    )
    text = (
        "# TYPE lat histogram\n"
        + "".join(
            f'lat_bucket{{engine="{engine}",le="{bound}"}} {count}\n'
            for engine, bound, count in [
                (0, "0.5", 1),
                (0, "1", 3),
                (0, "+Inf", 4),
                (1, "1.0", 5),
                (1, "2", 6),
                (1, "+Inf", 6),
            ]
        )
        + 'lat_count{engine="0"} 4\nlat_count{engine="1"} 6\n'
    )
    found = histogram(between(zero, text), "lat")
    assert found is not None
    assert found.buckets == ((1.0, 8.0), (math.inf, 10.0))
    assert found.count == 10
    assert histogram(between(zero, text), "other") is None


# ------------------------------------------------------------------------------------------------------------ laws
NAMES = st.sampled_from(["a_total", "b_total"])
ENGINES = st.sampled_from(["0", "1", "2"])
Values = dict[tuple[str, str], int]
VALUES = st.dictionaries(st.tuples(NAMES, ENGINES), st.integers(0, 10**9), min_size=1)


def taken(values: Values, at_seconds: float, kind: SampleKind = "counter") -> Snapshot:
    samples = tuple(
        Sample(name=name, labels={"engine": engine, "endpoint": URL}, value=float(value), kind=kind)
        for (name, engine), value in values.items()
    )
    return Snapshot(taken_at_seconds=at_seconds, wall_time="", urls=(URL,), samples=samples, families={"a_total": kind})


def grown(values: Values, more: Values) -> Values:
    return {key: values.get(key, 0) + more.get(key, 0) for key in {*values, *more}}


def increments(found: Delta) -> dict[tuple[str, str], float]:
    return {(s.name, s.labels["engine"]): s.increment for s in found.samples}


@given(VALUES, st.sampled_from(["counter", "gauge", "unknown"]))
def test_the_delta_of_equal_snapshots_is_zero(values: Values, kind: SampleKind) -> None:
    found = delta(taken(values, 0, kind), taken(values, 1, kind))
    assert set(increments(found).values()) == {0.0}
    assert (found.resets, found.vanished, found.restarts) == ((), (), ())


@given(VALUES, VALUES, VALUES)
def test_deltas_without_resets_add_up(first: Values, more: Values, still_more: Values) -> None:
    second = grown(first, more)
    third = grown(second, still_more)
    a, b, c = taken(first, 0), taken(second, 1), taken(third, 2)
    whole, left, right = increments(delta(a, c)), increments(delta(a, b)), increments(delta(b, c))
    assert {key: left.get(key, 0) + value for key, value in right.items()} == whole
    assert delta(a, c).resets == ()


@given(VALUES, VALUES, VALUES)
def test_more_scrapes_never_show_less(first: Values, second: Values, third: Values) -> None:
    # With resets in between, the sum over the parts is at least what the whole shows, and neither is negative.
    keys = set(first) & set(second) & set(third)
    a, b, c = taken(first, 0), taken(second, 1), taken(third, 2)
    whole, left, right = increments(delta(a, c)), increments(delta(a, b)), increments(delta(b, c))
    for key in keys:
        assert left[key] + right[key] >= whole[key] >= 0
        if second[key] < first[key]:
            assert any(text.startswith(key[0].removesuffix("_total")) for text in delta(a, b).resets)


@given(VALUES, VALUES)
def test_the_total_is_the_sum_over_engines(first: Values, more: Values) -> None:
    found = delta(taken(first, 0), taken(grown(first, more), 1))
    for name in ("a_total", "b_total"):
        parts = by_label(found, name, "engine")
        assert total(found, name) == (math.fsum(parts.values()) if parts else None)
        assert sum(more.get((name, engine), 0) for engine in parts) == sum(
            value for engine, value in parts.items() if (name, engine) in first or (name, engine) in more
        )
