"""The tail test: its three answers, what it refuses, and the laws it obeys."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pytest_kvoffload import stats
from pytest_kvoffload.errors import MissingExtraError
from pytest_kvoffload.stats import _slow, tail

Arms = tuple[NDArray[np.float64], NDArray[np.float64]]


def arms(n: int, factor: float, seed: int = 0, noise: float = 0.15) -> Arms:
    """Log-normal requests shared by both arms; the candidate's slowest twentieth is slower by the factor."""
    rng = np.random.default_rng(seed)
    base = 0.06 * np.exp(0.35 * rng.standard_normal(n))
    reference = base * np.exp(noise * rng.standard_normal(n))
    candidate = base * np.exp(noise * rng.standard_normal(n))
    return reference, np.where(candidate > np.quantile(candidate, 0.95), candidate * factor, candidate)


def hits_and_misses(n: int, factor: float, *, reference_rate: float, candidate_rate: float, seed: int = 0) -> Arms:
    rng = np.random.default_rng(seed)
    draw = rng.random(n)
    reference = np.where(draw < reference_rate, 0.3, 0.06) * np.exp(0.1 * rng.standard_normal(n))
    candidate = np.where(draw < candidate_rate, 0.3 * factor, 0.06) * np.exp(0.1 * rng.standard_normal(n))
    return reference, candidate


# ------------------------------------------------------------------------------------------------ answers
def test_a_slower_tail_is_worse_with_its_evidence() -> None:
    result = stats.tail_regression(*arms(500, 1.6))
    assert result.decision == "worse"
    assert result.p_value <= 0.01
    assert result.ratio_low > 1.1
    assert result.ratio_low < result.ratio < result.ratio_high
    assert result.n == 500
    assert "slower by more than the margin (p = " in result.explanation
    assert (
        f"tail ratio {result.ratio:.3f} ({result.ratio_low:.3f} to {result.ratio_high:.3f} at 95%)"
        in result.explanation
    )
    assert f"p99 {result.reference_quantile:.4g} s -> {result.candidate_quantile:.4g} s" in result.explanation


def test_no_change_is_not_worse_when_the_bound_says_so() -> None:
    result = stats.tail_regression(*arms(2000, 1.0))
    assert result.decision == "not_worse"
    assert result.ratio_high < 1.1
    assert "the upper bound lies below the margin" in result.explanation
    assert result.needed_n is None


def test_in_between_is_inconclusive_and_says_how_many_requests_would_tell() -> None:
    result = stats.tail_regression(*arms(200, 1.2, noise=0.3))
    assert result.decision == "inconclusive"
    assert result.needed_n is not None
    assert result.needed_n > 200
    assert f"about {result.needed_n} requests per arm would tell" in result.explanation


def test_too_few_requests_carry_no_p99() -> None:
    result = stats.tail_regression(*arms(99, 5.0))
    assert result.decision == "inconclusive"
    assert (result.p_value, result.ratio_low, result.ratio_high) == (1.0, 0.0, math.inf)
    assert result.needed_n == 100
    assert "99 requests per arm cannot carry a p99; at least 100 are needed" in result.explanation


@pytest.mark.parametrize("n", [1, 2, 3])
def test_almost_nothing_is_inconclusive_too(n: int) -> None:
    assert stats.tail_regression([0.1] * n, [0.9] * n).decision == "inconclusive"


def test_the_same_numbers_twice_are_not_worse() -> None:
    reference, _ = arms(300, 1.0)
    result = stats.tail_regression(reference, reference)
    assert result.decision == "not_worse"
    assert result.ratio == 1.0
    # No machine repeats itself exactly: 1 % stays, whatever was measured.
    assert result.ratio_low == pytest.approx(math.exp(-1.96 * 0.01), abs=1e-4)
    assert result.ratio_high == pytest.approx(math.exp(1.96 * 0.01), abs=1e-4)


def test_a_median_that_got_worse_is_no_tail_regression() -> None:
    reference, candidate = arms(1000, 1.0)
    edge = np.quantile(candidate, 0.9)
    slower = np.where(candidate < edge, np.minimum(candidate * 1.4, edge), candidate)
    assert np.median(slower) > 1.3 * np.median(reference)
    assert stats.tail_regression(reference, slower).decision == "not_worse"


def test_a_tail_of_a_faster_candidate_is_still_worse() -> None:
    reference, candidate = arms(1000, 1.6)
    better = np.where(candidate < np.quantile(candidate, 0.9), candidate * 0.7, candidate)
    assert better.mean() < reference.mean()
    assert stats.tail_regression(reference, better).decision == "worse"


def test_slower_misses_are_compared_as_a_mode_of_their_own() -> None:
    result = stats.tail_regression(*hits_and_misses(300, 1.5, reference_rate=0.05, candidate_rate=0.05, seed=3))
    assert result.decision == "worse"
    assert "mode of slow requests" in result.method


def test_a_few_more_misses_are_not_slower_misses() -> None:
    # p99 moves by 5 % only, although a tenth more requests are five times slower than before.
    result = stats.tail_regression(*hits_and_misses(2000, 1.0, reference_rate=0.05, candidate_rate=0.07))
    assert result.decision != "worse"
    assert result.ratio < 1.1


def test_misses_that_first_appear_are_worse() -> None:
    result = stats.tail_regression(*hits_and_misses(1000, 1.0, reference_rate=0.0, candidate_rate=0.04))
    assert result.decision == "worse"
    assert result.ratio > 2


def test_twice_as_slow_is_seen_at_three_hundred() -> None:
    found = [stats.tail_regression(*arms(300, 2.0, seed=seed)).decision for seed in range(40)]
    assert found.count("worse") >= 38


# ---------------------------------------------------------------------------------------- dependence
def test_one_boot_per_arm_is_assumed_to_have_an_effect() -> None:
    reference, candidate = arms(2000, 1.2)
    without = stats.tail_regression(reference, candidate)
    result = stats.tail_regression(reference, candidate, boots=["only"] * 2000)
    assert result.slow_sd >= 0.03 * math.sqrt(2)
    assert result.ratio == without.ratio
    assert result.ratio_high > without.ratio_high
    assert "an arm has one boot, whose own effect is assumed to be 3 %" in result.explanation
    one_sided = stats.tail_regression(reference, candidate, boots=(["a"] * 2000, [i // 500 for i in range(2000)]))
    assert 0.03 <= one_sided.slow_sd < result.slow_sd


@pytest.mark.parametrize("told", [True, False])
def test_boots_that_differ_widen_the_interval(told: bool) -> None:
    reference, candidate = arms(1200, 1.0)
    labels = [position // 300 for position in range(1200)]
    effects = np.array([1.1, 0.9, 1.1, 0.9])[labels]
    calm = stats.tail_regression(reference, candidate)
    result = stats.tail_regression(reference, candidate * effects, boots=labels if told else None)
    assert calm.slow_sd < 0.02
    # The effects' standard deviation is 11.6 % in logs, over four boots.
    assert result.slow_sd == pytest.approx(0.058, abs=0.02)


def test_interleaved_blocks_are_a_way_of_cutting_that_order_cannot_show() -> None:
    reference, candidate = arms(1200, 1.0)
    # Odd and even blocks differ: neighbouring stretches average it away, labels show it.
    labels = [(position // 20) % 3 for position in range(1200)]
    effects = np.array([1.15, 1.0, 0.87])[labels]
    unaware = stats.tail_regression(reference, candidate * effects)
    aware = stats.tail_regression(reference, candidate * effects, blocks=labels)
    assert aware.slow_sd > 0.06 > unaware.slow_sd


def test_what_arms_share_does_not_count_as_noise() -> None:
    reference, candidate = arms(300, 1.5)
    speed = np.exp(0.2 * np.sin(np.arange(300) / 30))
    paired = stats.tail_regression(reference * speed, candidate * speed)
    unpaired = stats.tail_regression(reference * speed, candidate * speed, paired=False)
    assert paired.slow_sd < 0.04 < unpaired.slow_sd
    assert unpaired.ratio_high - unpaired.ratio_low > paired.ratio_high - paired.ratio_low


def test_unpaired_arms_may_differ_in_length() -> None:
    reference, _ = arms(1500, 1.0, seed=1)
    _, candidate = arms(1000, 2.0, seed=2)
    result = stats.tail_regression(reference, candidate, paired=False)
    assert result.decision == "worse"
    assert result.n == 1000
    assert result.method.startswith("unpaired tail ratio")
    again = stats.tail_regression(
        reference, candidate, paired=False, boots=([p // 500 for p in range(1500)], [p // 250 for p in range(1000)])
    )
    assert again.decision == "worse"


def test_the_least_noise_is_assumed_and_not_measured() -> None:
    # Two boots that agree know their scatter with one degree of freedom; 1 % on top of it needs none.
    raised = _slow.at_least(_slow.SlowNoise(variance=1e-8, degrees=1.0))
    assert raised.variance == pytest.approx(0.01**2)
    assert raised.degrees > 1000
    assert _slow.at_least(_slow.SlowNoise()).degrees == math.inf
    edge, far = (_slow.SlowNoise(variance=variance, degrees=2.0) for variance in (0.01**2 * 0.999, 0.03**2))
    assert _slow.at_least(edge).degrees == pytest.approx(2.0, rel=0.01)
    assert _slow.at_least(far) == far


# ------------------------------------------------------------------------------------------- coarse clocks
def test_a_clock_that_sees_no_scatter_still_counts_pairs() -> None:
    result = stats.tail_regression([0.1] * 300, [0.2] * 300)
    assert result.ratio == pytest.approx(2.0)
    assert result.decision == "inconclusive" or result.p_value > 0.0
    unchanged = stats.tail_regression([0.1] * 300, [0.1] * 300)
    assert unchanged.decision == "not_worse"
    assert unchanged.p_value == 1.0


def test_a_coarse_clock_does_not_change_the_answer() -> None:
    for factor, expected in ((1.0, "not_worse"), (1.6, "worse")):
        reference, candidate = (np.ceil(arm / 0.01) * 0.01 for arm in arms(2000, factor))
        assert stats.tail_regression(reference, candidate).decision == expected


# ------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -0.5])
@pytest.mark.parametrize("arm", ["reference", "candidate"])
def test_a_latency_that_is_none_is_named(bad: float, arm: str) -> None:
    good, broken = [0.1] * 120, [*[0.1] * 7, bad, *[0.1] * 112]
    first, second = (broken, good) if arm == "reference" else (good, broken)
    with pytest.raises(ValueError, match=rf"{arm}\[7\] is {bad}"):
        stats.tail_regression(first, second)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"candidate": [0.1] * 119},
            "reference has 120 requests and candidate has 119: paired arms must hold the same",
        ),
        ({"candidate": []}, "candidate is empty"),
        ({"quantile": 1.0}, "quantile is 1.0: it must lie strictly between 0 and 1"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"confidence": 95}, "confidence is 95"),
        ({"margin": -0.1}, r"margin is -0.1: it must be a finite share of at least 0 \(0.10 is 10 %\)"),
        ({"boots": ["a"] * 5}, "boots has 5 labels for the 120 requests of reference: one each is needed"),
        ({"blocks": (["a"] * 120, ["a"])}, "blocks has 1 labels for the 120 requests of candidate"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"reference": [0.1] * 120, "candidate": [0.1] * 120, **change}
    with pytest.raises(ValueError, match=message):
        stats.tail_regression(**arguments)


def test_without_numpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, package: str | None = None) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingExtraError, match=r"the tail test needs .*'numpy'.*pytest-kvoffload\[gate\]"):
        stats.tail_regression([0.1], [0.1])


# -------------------------------------------------------------------------------------------------- laws
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 1.1, 1.3, 2.0]), st.sampled_from([100, 300, 700]))
def test_laws(seed: int, factor: float, n: int) -> None:
    reference, candidate = arms(n, factor, seed)
    result = stats.tail_regression(reference, candidate)
    # The decision and the p-value are the same statement; the interval agrees with both.
    assert (result.decision == "worse") == (result.p_value <= result.alpha)
    assert (result.decision == "not_worse") <= (result.ratio_high < 1.1)
    assert 0.0 < result.p_value <= 1.0
    assert result.ratio_low <= result.ratio <= result.ratio_high
    # Units do not matter.
    scaled = stats.tail_regression(reference * 1000.0, candidate * 1000.0)
    assert scaled.p_value == pytest.approx(result.p_value, rel=1e-6)
    assert scaled.ratio == pytest.approx(result.ratio)
    # A larger margin is never harder to keep.
    assert stats.tail_regression(reference, candidate, margin=0.3).p_value >= result.p_value


@pytest.mark.parametrize("seed", range(5))
def test_a_slower_candidate_never_looks_better(seed: int) -> None:
    reference, candidate = arms(500, 1.0, seed)
    results = [stats.tail_regression(reference, candidate * factor) for factor in (0.8, 1.0, 1.1, 1.2, 1.4, 1.8)]
    p_values = [result.p_value for result in results]
    assert p_values == sorted(p_values, reverse=True)
    assert results[-1].ratio == pytest.approx(1.8 * results[1].ratio)


@pytest.mark.parametrize(("q", "floor"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.999, 1000)])
def test_other_quantiles(q: float, floor: int) -> None:
    rng = np.random.default_rng(4)
    reference = rng.lognormal(0.0, 0.2, 4000)
    candidate = reference * rng.lognormal(math.log(1.5), 0.05, 4000)
    result = stats.tail_regression(reference, candidate, quantile=q)
    assert result.decision == "worse"
    assert result.ratio == pytest.approx(1.5, rel=0.06)
    short = stats.tail_regression(reference[: floor - 1], candidate[: floor - 1], quantile=q)
    assert short.needed_n == floor


def test_a_median_is_judged_by_the_middle_alone() -> None:
    reference, candidate = arms(2000, 3.0)
    result = stats.tail_regression(reference, candidate, quantile=0.5)
    assert result.decision == "not_worse"
    assert result.ratio == pytest.approx(1.0, abs=0.05)


# ------------------------------------------------------------------------------------------------- edges
SHAPES = ("log-normal", "constant", "the same", "ties", "two values", "one stall", "wild")


def shaped(shape: str, n: int, factor: float, seed: int) -> Arms:
    rng = np.random.default_rng(seed)
    b, c = rng.standard_normal(n), rng.standard_normal(n)
    match shape:
        case "constant":
            return np.full(n, 0.1), np.full(n, 0.1 * factor)
        case "the same":
            return np.exp(b), np.exp(b) * factor
        case "ties":
            return np.ceil(np.exp(0.3 * b) / 0.2), np.ceil(np.exp(0.3 * b + 0.1 * c) / 0.2) * factor
        case "two values":
            return np.where(b > 1.6, 1.0, 0.1), np.where(c > 1.6, factor, 0.1)
        case "one stall":
            return np.full(n, 0.1), np.where(np.arange(n) == 0, 1e6, 0.1)
        case "wild":
            return np.exp(20 * b), np.exp(20 * c)
        case _:
            return arms(n, factor, seed)


@settings(max_examples=300, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    n=st.sampled_from([1, 2, 3, 19, 20, 99, 100, 137, 300, 777]),
    factor=st.sampled_from([0.8, 1.0, 1.1, 2.0, 5.0]),
    seed=st.integers(0, 10_000),
    quantile=st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.999]),
    margin=st.sampled_from([0.0, 0.1, 1.0]),
    alpha=st.sampled_from([1e-300, 0.01, 0.5, 0.9]),
    confidence=st.sampled_from([0.5, 0.95, 1.0 - 1e-15]),
    paired=st.booleans(),
    blocks=st.sampled_from([None, 1, 7, 1000]),
    boots=st.sampled_from([None, 1, 2, 5]),
)
def test_what_is_said_agrees_with_itself(
    shape: str,
    n: int,
    factor: float,
    seed: int,
    quantile: float,
    margin: float,
    alpha: float,
    confidence: float,
    paired: bool,
    blocks: int | None,
    boots: int | None,
) -> None:
    reference, candidate = shaped(shape, n, factor, seed)
    if not paired:
        candidate = np.concatenate([candidate, candidate[: n // 2]])

    def labels(count: int | None) -> tuple[list[int], list[int]] | None:
        sizes = (len(reference), len(candidate))
        return None if count is None else ([i * count // sizes[0] for i in range(sizes[0])], [*range(sizes[1])])

    result = stats.tail_regression(
        reference,
        candidate,
        quantile=quantile,
        margin=margin,
        alpha=alpha,
        confidence=confidence,
        paired=paired,
        blocks=labels(blocks),
        boots=labels(boots),
    )
    assert result.n == n
    assert 0.0 <= result.p_value <= 1.0
    assert 0.0 <= result.ratio_low <= result.ratio <= result.ratio_high
    assert (result.decision == "worse") == (result.p_value <= alpha)
    if result.decision == "worse":
        assert result.ratio > 1.0 + margin
        assert alpha > (1.0 - confidence) / 2.0 or result.ratio_low > 1.0 + margin
    if result.decision == "not_worse":
        assert result.ratio_high < 1.0 + margin
    if n < stats.smallest_n(quantile):
        assert (result.decision, result.needed_n) == ("inconclusive", stats.smallest_n(quantile))
        assert "cannot carry" in result.explanation
    else:
        assert "cannot carry" not in result.explanation
    assert result.needed_n is None or (result.decision == "inconclusive" and result.needed_n > n)


def test_an_interval_beyond_all_numbers_is_no_crash() -> None:
    # A first look that may spend almost nothing asks for a confidence that four slow requests cannot give.
    gate = stats.SequentialGate(looks=(100, 10_000), spending="obrien-fleming")
    reference, candidate = shaped("one stall", 100, 1.0, 0)
    look = gate.look(reference.tolist(), candidate.tolist())
    assert look.result.decision == "inconclusive"
    assert look.result.ratio_high == math.inf
    assert "cannot carry" not in look.result.explanation


def test_labels_may_be_arrays() -> None:
    reference, candidate = arms(600, 1.0)
    first: Any = np.arange(600) // 200
    second: Any = np.arange(600) // 120
    listed = stats.tail_regression(reference, candidate, boots=(first.tolist(), second.tolist()))
    assert stats.tail_regression(reference, candidate, boots=(first, second)) == listed
    assert stats.tail_regression(reference, candidate, boots=first).n == 600


def test_a_table_of_latencies_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reference has the shape \(100, 2\): one latency a request is needed"):
        stats.tail_regression(np.full((100, 2), 0.1), np.full((100, 2), 0.1))


def test_a_tail_without_scatter_is_no_proof_of_precision() -> None:
    # Ten pairs went from one tick of the clock to the next: a sign test of ten is what they can say.
    reference = np.full(250, 0.1)
    reference[::25] = 1.0
    candidate = np.where(reference == 1.0, 1.2, 0.1)
    drifting = np.where(reference == 1.0, 1.2, 0.1 * np.repeat([1.0, 1.01, 1.0, 0.99, 1.0], 50))
    for arm in (candidate, drifting):
        assert stats.tail_regression(reference, arm).p_value >= 0.5**10


def test_tails_that_share_no_request_know_their_scatter_better() -> None:
    rng = np.random.default_rng(0)
    shared = np.exp(0.6 * rng.standard_normal(300))
    together = [shared * np.exp(0.01 * rng.standard_normal(300)) for _ in range(2)]
    apart = [np.exp(0.6 * rng.standard_normal(300)) for _ in range(2)]
    (one, _), (two, _) = (tail._tail_sets(np.log(a), np.log(b), 0.99, True) for a, b in (together, apart))
    assert one[2].tail_n == two[2].tail_n == 12
    assert 1.5 * tail._degrees(one[2]) < tail._degrees(two[2]) <= 22
