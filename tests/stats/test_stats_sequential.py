"""Several looks and several metrics: the error adds up to what was asked for, and no more."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from pytest_kvoffload import stats
from pytest_kvoffload.stats.sequential import Spending

SPENDINGS: tuple[Spending, ...] = ("linear", "pocock", "obrien-fleming")


def noisy(n: int, factor: float, seed: int = 0) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(seed)
    base = 0.1 * np.exp(0.3 * rng.standard_normal(n))
    first, second = (base * np.exp(0.1 * rng.standard_normal(n)) for _ in range(2))
    return first.tolist(), (second * factor).tolist()


@pytest.mark.parametrize("spending", SPENDINGS)
def test_levels_of_the_looks_add_up_to_alpha(spending: Spending) -> None:
    gate = stats.SequentialGate(looks=(100, 200, 400), alpha=0.02, spending=spending)
    looks = [gate.look(*(arm[:n] for arm in noisy(400, 1.0))) for n in gate.looks]
    assert sum(look.result.alpha for look in looks) == pytest.approx(0.02)
    assert sum(1.0 - look.result.confidence for look in looks) == pytest.approx(0.05)
    assert [look.alpha_before for look in looks] == pytest.approx([0.0, gate.spent(100), gate.spent(399)])
    assert gate.spent(99) == 0.0
    assert gate.spent(400) == pytest.approx(0.02)
    assert [look.final for look in looks] == [False, False, True]
    assert looks[-1].stop


def test_spending_functions_are_those_of_lan_and_demets() -> None:
    halves = {name: stats.SequentialGate(looks=(150, 300), spending=name).spent(150) for name in SPENDINGS}
    assert halves["linear"] == pytest.approx(0.005)
    assert halves["pocock"] == pytest.approx(0.01 * math.log(1 + (math.e - 1) / 2))
    assert halves["obrien-fleming"] == pytest.approx(
        2 * scipy_stats.norm.sf(scipy_stats.norm.isf(0.005) / math.sqrt(0.5))
    )


def test_a_clear_regression_stops_at_the_first_look() -> None:
    gate = stats.SequentialGate(looks=(150, 300, 600))
    reference, candidate = noisy(600, 2.0)
    look = gate.look(reference[:150], candidate[:150])
    assert look.result.decision == "worse"
    assert look.stop
    assert not look.final
    assert look.result.n == 150


def test_a_doubtful_one_goes_on() -> None:
    gate = stats.SequentialGate(looks=(150, 300))
    reference, candidate = noisy(300, 1.12)
    look = gate.look(reference[:150], candidate[:150])
    assert look.result.decision == "inconclusive"
    assert not look.stop
    assert gate.next_look(150) == 300
    assert gate.next_look(300) is None
    assert gate.look(reference, candidate).stop


def test_stopping_early_halves_the_requests_of_a_doubled_tail() -> None:
    gate = stats.SequentialGate(looks=(100, 150, 200, 300))
    reached = []
    for seed in range(60):
        reference, candidate = noisy(300, 2.0, seed)
        for n in gate.looks:
            look = gate.look(reference[:n], candidate[:n])
            if look.stop:
                break
        assert look.result.decision == "worse"
        reached.append(look.result.n)
    assert np.mean(reached) <= 150


def test_looking_at_another_time_is_refused() -> None:
    gate = stats.SequentialGate(looks=(150, 300))
    with pytest.raises(ValueError, match=r"200 requests is not one of the planned looks \(150, 300\)"):
        gate.look(*noisy(200, 1.0))


@pytest.mark.parametrize("looks", [(), (0, 10), (200, 100), (100, 100)])
def test_looks_must_ascend(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must hold ascending numbers of requests"):
        stats.SequentialGate(looks=looks)


def test_an_unknown_spending_is_refused() -> None:
    with pytest.raises(ValueError, match="spending is 'all': linear, obrien-fleming or pocock"):
        stats.SequentialGate(looks=(100,), spending="all")  # type: ignore[arg-type]


def test_holm_adjusts_as_in_the_textbook() -> None:
    # The example of R's p.adjust: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm").
    p_values = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert stats.holm_adjusted(p_values) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert stats.holm(p_values, 0.05) == {"a": True, "b": False, "c": False, "d": True}
    assert stats.holm({}, 0.05) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_bonferroni_and_nothing(p_values: list[float]) -> None:
    named = dict(enumerate(p_values))
    adjusted = stats.holm_adjusted(named)
    assert list(adjusted) == list(named)
    for key, p in named.items():
        assert p <= adjusted[key] <= min(1.0, len(named) * p) + 1e-12
    for a, b in itertools.combinations(named, 2):
        assert (named[a] <= named[b]) or (adjusted[a] >= adjusted[b])


def test_holm_holds_the_family() -> None:
    rng = np.random.default_rng(0)
    # Five metrics of the same requests: strongly dependent, none of them changed.
    z = rng.standard_normal((4000, 1)) * 0.8 + rng.standard_normal((4000, 5)) * 0.6
    p_values = scipy_stats.norm.sf(z)
    false = np.mean([any(stats.holm(dict(enumerate(row)), 0.05).values()) for row in p_values])
    assert false <= 0.05


def test_holm_refuses_what_is_no_p_value() -> None:
    with pytest.raises(ValueError, match=r"the p-value of 'ttft' is 1\.2: it must lie between 0 and 1"):
        stats.holm({"ttft": 1.2})
    with pytest.raises(ValueError, match="alpha is 0"):
        stats.holm({"ttft": 0.2}, 0)
