"""The sample quantile, its interval and the sample sizes, against definitions and outside values."""

from __future__ import annotations

import builtins
import importlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from pytest_kvoffload import stats
from pytest_kvoffload.errors import MissingExtraError

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.mark.parametrize(
    ("n", "q", "expected"),
    [(100, 0.99, 99), (99, 0.99, 99), (101, 0.99, 100), (100, 0.07, 7), (10, 0.5, 5), (1, 0.99, 1), (10, 0, 1)],
)
def test_quantile_is_the_order_statistic(n: int, q: float, expected: int) -> None:
    assert stats.quantile(range(n, 0, -1), q) == expected


@given(st.lists(FINITE, min_size=1, max_size=60), st.floats(0, 1))
def test_quantile_agrees_with_numpy(samples: list[float], q: float) -> None:
    ours = stats.quantile(samples, q)
    assert ours in samples
    # numpy computes n * q in binary, so the two may part by one rank where n * q is an integer.
    neighbours = {
        float(np.quantile(samples, w, method="inverted_cdf")) for w in (q, max(q - 1e-9, 0), min(q + 1e-9, 1))
    }
    assert ours in neighbours


@given(st.lists(FINITE, min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_quantile_is_monotone(samples: list[float], a: float, b: float) -> None:
    assert stats.quantile(samples, min(a, b)) <= stats.quantile(samples, max(a, b))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_quantile_names_the_bad_sample(bad: float) -> None:
    with pytest.raises(ValueError, match=r"samples\[1\] is (nan|inf|-inf): every sample must be a finite number"):
        stats.quantile([1.0, bad], 0.5)


def test_quantile_refuses_nothing_and_nonsense() -> None:
    with pytest.raises(ValueError, match="samples is empty"):
        stats.quantile([], 0.5)
    with pytest.raises(ValueError, match="q is 99: a quantile must lie between 0 and 1"):
        stats.quantile([1.0], 99)


@pytest.mark.parametrize(
    ("q", "confidence", "expected"),
    [
        (0.5, None, 2),
        (0.95, None, 20),
        (0.99, None, 100),
        (0.999, None, 1000),
        (0.01, None, 100),
        # Wilks: the classical 59 / 299 of tolerance limits; 368 for the two-sided 95 % interval of a p99.
        (0.95, 0.95, 59),
        (0.99, 0.95, 299),
        (0.99, 0.975, 368),
        (0.01, 0.95, 299),
        (0.5, 0.5, 1),
        (0.5, 0.75, 2),
    ],
)
def test_smallest_n(q: float, confidence: float | None, expected: int) -> None:
    assert stats.smallest_n(q, confidence) == expected


@given(st.integers(1, 400))
def test_below_smallest_n_the_quantile_is_the_maximum(n: int) -> None:
    is_maximum = stats.quantile(range(n), 0.99) == n - 1
    assert is_maximum == (n < stats.smallest_n(0.99))


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [20, 100, 368, 1000])
def test_interval_bounds_are_the_tightest_that_hold(n: int, q: float) -> None:
    interval = stats.quantile_interval(range(1, n + 1), q)
    binom = scipy_stats.binom(n, q)
    if interval.low is None:
        assert binom.cdf(0) > 0.025
    else:
        assert binom.cdf(interval.low - 1) <= 0.025 < binom.cdf(interval.low)
    if interval.high is None:
        assert binom.pmf(n) > 0.025
    else:
        assert binom.sf(interval.high - 1) <= 0.025 < binom.sf(interval.high - 2)


def test_interval_of_the_median_of_ten_is_the_textbook_one() -> None:
    # Tables of the sign test: (x_2, x_9) covers the median of ten with 97.9 %.
    interval = stats.quantile_interval(range(1, 11), 0.5)
    assert (interval.low, interval.value, interval.high) == (2, 5, 9)
    assert interval.complete


def test_interval_has_no_upper_bound_when_n_cannot_carry_it() -> None:
    interval = stats.quantile_interval(range(367), 0.99)
    assert interval.high is None
    assert interval.low is not None
    assert not interval.complete
    assert interval.needed_n == 368
    assert stats.quantile_interval(range(368), 0.99).complete


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([None, 10.0]))
def test_interval_covers(seed: int, tick: float | None) -> None:
    generator = np.random.default_rng(seed)
    runs = generator.exponential(100.0, size=(400, 500))
    truth = -100.0 * math.log(0.05)
    if tick is not None:
        runs, truth = np.ceil(runs / tick) * tick, math.ceil(truth / tick) * tick
    intervals = [stats.quantile_interval(run, 0.95) for run in runs]
    covered = sum(i.low is not None and i.high is not None and i.low <= truth <= i.high for i in intervals)
    # 95 % asked of 400: below 366 happens by chance in fewer than one of a thousand.
    assert covered >= 366


def test_interval_without_scipy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, package: str | None = None) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(
        MissingExtraError, match=r"the interval of a quantile needs .*'scipy'.*pytest-kvoffload\[gate\]"
    ):
        stats.quantile_interval([1.0, 2.0], 0.5)


def test_quantile_and_smallest_n_need_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def guarded(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] in {"numpy", "scipy"}:
            raise AssertionError(f"imported {name}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)
    assert stats.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert stats.smallest_n(0.99, 0.95) == 299
