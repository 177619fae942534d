from __future__ import annotations

import pytest
from factories import control, delta, good, measurement, phase
from test_assert_common import outcome

from pytest_kvoffload.assertions import (
    assert_client_and_server_agree_on_ttft,
    assert_restored_faster_than_cold,
    assert_store_cost_bounded,
    assert_ttft_max_bounded,
    assert_ttft_p50_below,
    assert_ttft_p95_bounded,
    assert_ttft_p99_bounded,
)
from pytest_kvoffload.records import Measurement


def restored(*times: float) -> Measurement:
    return measurement(phase("cold", [0.4] * len(times)), phase("restored", times))


def test_p50_absolute() -> None:
    made = restored(0.1, 0.2, 0.3)
    assert_ttft_p50_below(made, 0.2)
    error = outcome(lambda: assert_ttft_p50_below(made, 0.19))
    assert error.outcome == "violated"
    assert "the p50 of TTFT in phase 'restored' of 'native' is 0.2000 s, allowed is 0.1900 s" in str(error)
    assert outcome(lambda: assert_ttft_p50_below(restored(0.1), 1.0)).outcome == "too-few-samples"


def test_p50_against_the_control_with_factor_and_slack() -> None:
    assert_ttft_p50_below(good(), relative_to=control(), factor=0.9)
    slow = good(times=0.38)
    error = outcome(lambda: assert_ttft_p50_below(slow, relative_to=control(), factor=0.9))
    assert "p50 of control/restored, n = 12" in str(error)
    assert_ttft_p50_below(slow, relative_to=control(), factor=0.9, slack_seconds=0.1)
    assert_ttft_p50_below(good(), relative_to=good(), relative_phase="cold", factor=0.5)
    few = control(1)
    assert outcome(lambda: assert_ttft_p50_below(good(), relative_to=few)).outcome == "too-few-samples"


@pytest.mark.parametrize("both", [True, False])
def test_exactly_one_bound_is_given(both: bool) -> None:
    bounds = {"bound_seconds": 1.0, "relative_to": control()} if both else {}
    with pytest.raises(TypeError, match="either bound_seconds or relative_to"):
        assert_ttft_p50_below(good(), **bounds)  # type: ignore[arg-type]


def test_the_p99_of_twelve_samples_is_refused_by_name() -> None:
    error = outcome(lambda: assert_ttft_p99_bounded(good(12), 10.0))
    assert error.outcome == "too-few-samples"
    assert "the p99 of 12 samples is refused: a p99 needs at least 100" in str(error)
    assert "assert_ttft_max_bounded" in str(error)
    assert_ttft_max_bounded(good(12), 10.0)


def test_p99_and_p95_where_the_samples_carry_them() -> None:
    times = [0.1] * 98 + [0.5, 0.9]
    assert_ttft_p99_bounded(restored(*times), 0.5)
    assert outcome(lambda: assert_ttft_p99_bounded(restored(*times), 0.49)).outcome == "violated"
    assert_ttft_p95_bounded(restored(*times), 0.1)
    assert outcome(lambda: assert_ttft_p95_bounded(restored(*times[-19:]), 0.1)).outcome == "too-few-samples"
    assert_ttft_p95_bounded(restored(*times[-20:]), 0.5)
    assert outcome(lambda: assert_ttft_p95_bounded(restored(*times[-20:]), 0.4)).outcome == "violated"


def test_a_confidence_asks_for_more_samples() -> None:
    times = [0.1 + 0.0001 * (i % 7) for i in range(200)]
    assert_ttft_p99_bounded(restored(*times), 0.2)
    error = outcome(lambda: assert_ttft_p99_bounded(restored(*times), 0.2, confidence=0.95))
    assert error.outcome == "too-few-samples"
    assert "299 are needed" in str(error)
    assert_ttft_p50_below(restored(*times), 0.2, confidence=0.95)
    # The sample median is 0.1003, its upper limit is not below that.
    assert outcome(lambda: assert_ttft_p50_below(restored(*times), 0.1002, confidence=0.95)).outcome == "violated"


def test_the_slowest_request() -> None:
    assert_ttft_max_bounded(restored(0.1, 0.9), 0.9)
    error = outcome(lambda: assert_ttft_max_bounded(restored(0.1, 0.9), 0.8))
    assert error.outcome == "violated"
    assert "the slowest request of TTFT" in str(error)
    assert_ttft_max_bounded(good(), relative_to=control(), factor=1.0)


def test_restored_against_cold_compares_equal_requests() -> None:
    assert_restored_faster_than_cold(good())
    assert_restored_faster_than_cold(good(), factor=5)
    error = outcome(lambda: assert_restored_faster_than_cold(good(), factor=20))
    assert error.outcome == "violated"
    assert "12 equal requests, 12 of them faster" in str(error)
    equal = restored(*[0.4] * 12)
    assert outcome(lambda: assert_restored_faster_than_cold(equal)).outcome == "violated"
    few = restored(*[0.1] * 4)
    error = outcome(lambda: assert_restored_faster_than_cold(few))
    assert error.outcome == "too-few-samples"
    assert "a direction needs at least 5" in str(error)


def test_one_outlier_does_not_decide() -> None:
    assert_restored_faster_than_cold(restored(*[0.1] * 11, 30.0), factor=3)


def test_the_cost_of_storing() -> None:
    assert_store_cost_bounded(good(), control(), 1.2)
    error = outcome(lambda: assert_store_cost_bounded(good(cold=0.6), control(), 1.2))
    assert error.outcome == "violated"
    assert "the cold pass takes 1.58 times what the control takes" in str(error)
    assert_store_cost_bounded(good(cold=0.6), control(), 1.2, slack_seconds=0.2)
    unstored = measurement(phase("cold", [0.4] * 12, delta(prompt_tokens=1980, store_bytes=0)))
    assert outcome(lambda: assert_store_cost_bounded(unstored, control())).outcome == "tier-not-exercised"
    assert outcome(lambda: assert_store_cost_bounded(control(), control())).outcome == "metric-absent"
    few = good(3)
    assert outcome(lambda: assert_store_cost_bounded(few, control())).outcome == "too-few-samples"


def test_client_and_server_agree() -> None:
    assert_client_and_server_agree_on_ttft(good())

    def server_says(count: int, mean: float) -> Measurement:
        meters = delta(prompt_tokens=1980, ttft=(count, count * mean))
        return measurement(phase("cold", [0.4] * 12), phase("restored", [0.4] * 12, meters))

    assert_client_and_server_agree_on_ttft(server_says(12, 0.37))
    error = outcome(lambda: assert_client_and_server_agree_on_ttft(server_says(12, 0.2)))
    assert error.outcome == "violated"
    assert "disagree on the mean TTFT by 0.2000 s" in str(error)
    error = outcome(lambda: assert_client_and_server_agree_on_ttft(server_says(30, 0.4)))
    assert "the server timed 30 requests in phase 'restored', the client 12" in str(error)
    silent = measurement(phase("cold", [0.4] * 12), phase("restored", [0.4] * 12, delta(prompt_tokens=1)))
    assert outcome(lambda: assert_client_and_server_agree_on_ttft(silent)).outcome == "metric-absent"
