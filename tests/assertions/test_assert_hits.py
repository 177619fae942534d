from __future__ import annotations

import dataclasses

import pytest
from factories import PREFIX, PROMPT, control, delta, good, measurement, phase
from test_assert_common import outcome

from pytest_kvoffload.assertions import (
    assert_hit_rate_above,
    assert_no_allocation_failures,
    assert_no_failed_requests,
    assert_no_stores_without_loads,
    assert_preemptions_below,
    assert_tier_exercised,
)
from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.records import Delta, Measurement


def with_restored(meters: Delta, *, mode: str = "restore", stored: float = 3e6, **extra: object) -> Measurement:
    cold = delta(prompt_tokens=PROMPT * 12, store_bytes=stored)
    return measurement(
        phase("cold", [0.4] * 12, cold), phase("restored", [0.4] * 12, meters), mode=mode, extra=extra or None
    )


# ------------------------------------------------------------------------------------------------- hit rate
def test_hit_rate_passes_and_fails_on_either_side_of_the_rate() -> None:
    rate = PREFIX / PROMPT
    assert_hit_rate_above(good(), rate - 0.001)
    assert_hit_rate_above(good(), rate - 0.001, tier="external")
    error = outcome(lambda: assert_hit_rate_above(good(), rate + 0.001))
    assert error.outcome == "violated"
    assert f"is {rate:.3f}" in str(error)
    assert outcome(lambda: assert_hit_rate_above(good(), rate)).outcome == "violated"


def test_the_rounding_to_chunks_is_explained() -> None:
    made = dataclasses.replace(good())
    text = str(outcome(lambda: assert_hit_rate_above(made, 0.99)))
    assert "a chunk is 16 tokens: of a prefix of 160 tokens at most 160 hit, of a prompt of 165 that is 0.970" in text


def test_an_absent_metric_is_not_a_zero() -> None:
    made = with_restored(delta(prompt_tokens=1980, external=None))
    error = outcome(lambda: assert_hit_rate_above(made, 0.0, tier="external"))
    assert error.outcome == "metric-absent"
    assert "external_kv_transfer" in str(error)


def test_no_prompt_in_the_window_is_absent_too() -> None:
    made = with_restored(delta(prompt_tokens=0))
    error = outcome(lambda: assert_hit_rate_above(made, 0.5))
    assert error.outcome == "metric-absent"
    assert "no prompt was processed in the window" in str(error)


def test_an_unknown_tier_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"unknown tier 'hots'.*did you mean 'host'"):
        assert_hit_rate_above(good(), 0.5, tier="hots")


@pytest.mark.parametrize("threshold", [-0.1, 1.0, 60])
def test_a_threshold_that_no_rate_exceeds_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="a hit rate lies in"):
        assert_hit_rate_above(good(), threshold)


# ------------------------------------------------------------------------------------------------ exercised
def test_tier_exercised_passes_with_one_hit_token_and_fails_with_none() -> None:
    assert_tier_exercised(with_restored(delta(prompt_tokens=1980, external=16)))
    error = outcome(lambda: assert_tier_exercised(with_restored(delta(prompt_tokens=1980))))
    assert error.outcome == "tier-not-exercised"
    assert "the tier was never reached in phase 'restored' of 'native': 0 of 1,980 prompt tokens" in str(error)


@pytest.mark.parametrize(
    ("made", "advice"),
    [
        (with_restored(delta(prompt_tokens=1980, device=1900)), "the device still held what was asked"),
        (with_restored(delta(prompt_tokens=1980), mode="no_reuse"), "the traffic has no reuse"),
        (with_restored(delta(prompt_tokens=1980, failures=7), stored=0), "too small: it refused 7 stores"),
        (with_restored(delta(prompt_tokens=1980), stored=0, cpu_bytes_to_use=8), "too small to hold one chunk"),
        (with_restored(delta(prompt_tokens=1980), stored=0, blocks_per_chunk=16), "chunks are too large: 256 tokens"),
        (with_restored(delta(prompt_tokens=1980), cpu_bytes_to_use=1000000), "too small for this working set"),
        (with_restored(delta(prompt_tokens=1980), stored=0), "nothing was stored: is the connector the one"),
        (with_restored(delta(prompt_tokens=1980)), "stores happened and nothing was found again"),
        (control(), "this arm has no connector (recompute)"),
    ],
)
def test_the_cause_is_told_apart(made: Measurement, advice: str) -> None:
    assert advice in str(outcome(lambda: assert_tier_exercised(made)))


# ----------------------------------------------------------------------------------------------- store, load
def test_stores_without_loads() -> None:
    assert_no_stores_without_loads(good())
    error = outcome(lambda: assert_no_stores_without_loads(with_restored(delta(prompt_tokens=1980))))
    assert error.outcome == "violated"
    assert "3,000,000 bytes were stored and none was ever loaded" in str(error)
    nothing = with_restored(delta(prompt_tokens=1980), stored=0)
    assert outcome(lambda: assert_no_stores_without_loads(nothing)).outcome == "tier-not-exercised"
    assert outcome(lambda: assert_no_stores_without_loads(control())).outcome == "metric-absent"


def test_allocation_failures_are_summed_over_phases() -> None:
    assert_no_allocation_failures(good())
    made = with_restored(delta(prompt_tokens=1980, failures=4))
    error = outcome(lambda: assert_no_allocation_failures(made))
    assert error.outcome == "violated"
    assert "the tier refused 4 stores" in str(error)
    assert "cold, restored" in str(error)
    assert_no_allocation_failures(made, phase="cold")
    assert outcome(lambda: assert_no_allocation_failures(control())).outcome == "metric-absent"
    empty = measurement(complete=True)
    assert outcome(lambda: assert_no_allocation_failures(empty, phase="cold")).outcome == "phase-missing"
    assert outcome(lambda: assert_no_allocation_failures(empty)).outcome == "phase-missing"


def test_preemptions() -> None:
    made = with_restored(delta(prompt_tokens=1980, preemptions=3))
    assert_preemptions_below(made, 4)
    error = outcome(lambda: assert_preemptions_below(made, 3))
    assert error.outcome == "violated"
    assert "3 preemptions in phase 'restored', asked for are fewer than 3" in str(error)
    silent = with_restored(delta(prompt_tokens=1980))
    assert outcome(lambda: assert_preemptions_below(silent, 1)).outcome == "metric-absent"


def test_failed_requests_over_all_phases() -> None:
    assert_no_failed_requests(good())
    made = measurement(
        phase("cold", [0.1] * 5, failed=(1,), error="HTTP 500: a"), phase("restored", [0.1] * 5, failed=(4,))
    )
    assert_no_failed_requests(made, at_most=2)
    error = outcome(lambda: assert_no_failed_requests(made))
    assert error.outcome == "violated"
    assert "2 of 10 requests failed, at most 0 may" in str(error)
    assert "cold/1, restored/4" in str(error)
    assert "HTTP 500: a" in str(error)
    assert outcome(lambda: assert_no_failed_requests(measurement())).outcome == "phase-missing"
    assert outcome(lambda: assert_no_failed_requests(good(complete=False))).outcome == "incomplete"
    assert outcome(lambda: assert_no_failed_requests(measurement(phase("cold", [])))).outcome == "too-few-samples"
