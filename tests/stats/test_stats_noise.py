"""The noise floor of a runner."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_kvoffload import stats


def constant_runs(*levels: float) -> list[list[float]]:
    return [[level] * 100 for level in levels]


def test_the_floor_is_the_prediction_limit_of_two_runs() -> None:
    floor = stats.noise_floor(constant_runs(1.0, math.exp(0.1), math.exp(-0.1)))
    assert floor.run_sd == pytest.approx(0.1)
    # t(0.95, 2 degrees of freedom) = 2.920.
    assert floor.margin == pytest.approx(math.expm1(2.920 * 0.1 * math.sqrt(2)), rel=1e-3)
    assert floor.observed == pytest.approx(math.expm1(0.2))
    assert (floor.runs, floor.n) == (3, 100)
    assert "p99 of 3 runs of the same configuration scatters by 10.0%" in floor.explanation
    assert "within 51.1% with 95% confidence at 1 boot per arm" in floor.explanation


def test_more_boots_per_arm_lower_the_floor() -> None:
    runs = constant_runs(1.0, 1.05, 0.97, 1.02)
    one, four = (stats.noise_floor(runs, boots_per_arm=boots) for boots in (1, 4))
    assert math.log1p(four.margin) == pytest.approx(math.log1p(one.margin) / 2)


def test_runs_without_noise_have_no_floor() -> None:
    assert stats.noise_floor(constant_runs(1.0, 1.0, 1.0)).margin == 0.0


def test_two_further_runs_stay_within_the_floor_as_often_as_said() -> None:
    rng = np.random.default_rng(0)
    within = []
    for _ in range(600):
        runs = 0.1 * np.exp(0.05 * rng.standard_normal((7, 1)) + 0.2 * rng.standard_normal((7, 200)))
        floor = stats.noise_floor([run.tolist() for run in runs[:5]], 0.95)
        first, second = (stats.quantile(run.tolist(), 0.95) for run in runs[5:])
        within.append(second / first <= 1.0 + floor.margin)
    # 95 % of 600 asked; fewer than 552 happen in under one of a thousand.
    assert sum(within) >= 552


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        (constant_runs(1.0, 1.0), {}, "2 runs cannot show how much runs differ: at least 3 are needed"),
        (
            [[1.0] * 100, [1.0] * 100, [1.0] * 99],
            {},
            r"runs\[2\] has 99 requests, which cannot carry a p99: at least 100",
        ),
        ([[1.0] * 100, [1.0, math.nan], [1.0]], {}, r"runs\[1\]\[1\] is nan"),
        (constant_runs(1.0, 1.0, 1.0), {"boots_per_arm": 0}, "boots_per_arm is 0"),
        (constant_runs(1.0, 1.0, 1.0), {"confidence": 1.0}, "confidence is 1.0"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(runs: list[list[float]], options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stats.noise_floor(runs, **options)  # type: ignore[arg-type]
