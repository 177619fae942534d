"""What every assertion refuses, and what every failure text carries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from factories import control, delta, good, measurement, phase

from pytest_kvoffload import assertions
from pytest_kvoffload.assertions import MeterAssertionError, assert_hit_rate_above
from pytest_kvoffload.records import Measurement

CALLS: dict[str, Callable[[Measurement], None]] = {
    "hit_rate": lambda m: assertions.assert_hit_rate_above(m, 0.5),
    "exercised": lambda m: assertions.assert_tier_exercised(m),
    "stores": lambda m: assertions.assert_no_stores_without_loads(m),
    "allocation": lambda m: assertions.assert_no_allocation_failures(m, phase="restored"),
    "preemptions": lambda m: assertions.assert_preemptions_below(m, 1),
    "p50": lambda m: assertions.assert_ttft_p50_below(m, 1.0),
    "p95": lambda m: assertions.assert_ttft_p95_bounded(m, 1.0),
    "p99": lambda m: assertions.assert_ttft_p99_bounded(m, 1.0),
    "max": lambda m: assertions.assert_ttft_max_bounded(m, 1.0),
    "restored": lambda m: assertions.assert_restored_faster_than_cold(m),
    "agree": lambda m: assertions.assert_client_and_server_agree_on_ttft(m),
    "same": lambda m: assertions.assert_same_output(m),
    "lookup": lambda m: assertions.assert_lookup_delay_bounded(m, 1.0),
    "bandwidth": lambda m: assertions.assert_load_bandwidth_above(m, 1.0),
    "helps": lambda m: assertions.assert_offload_helps(m, control()),
}


def outcome(call: Callable[[], None]) -> MeterAssertionError:
    with pytest.raises(MeterAssertionError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_an_incomplete_measurement_is_never_judged(name: str) -> None:
    made = good(120, complete=False, notes=("incomplete: interrupted during phase 'restored'",))
    error = outcome(lambda: CALLS[name](made))
    assert error.outcome == "incomplete"
    assert "interrupted during phase 'restored'" in str(error)


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_phase_is_named_with_those_there_are(name: str) -> None:
    made = measurement(phase("cold", [0.1] * 120), mode="resident")
    error = outcome(lambda: CALLS[name](made))
    assert error.outcome == "phase-missing"
    assert "has no phase 'restored'; workload mode 'resident' has: cold" in str(error)


@pytest.mark.parametrize("name", CALLS)
def test_failed_requests_are_not_averaged_away(name: str) -> None:
    whole = good(120)
    made = measurement(
        whole.phase("cold"), phase("restored", [0.1] * 120, whole.phase("restored").delta, failed=(3, 9))
    )
    error = outcome(lambda: CALLS[name](made))
    assert error.outcome == "failed-requests"
    assert "2 of 120 requests failed in phase 'restored'" in str(error)
    assert "request 3: HTTP 500: boom" in str(error)


@pytest.mark.parametrize("name", CALLS)
def test_no_request_at_all_is_too_few(name: str) -> None:
    whole = good(12)
    made = measurement(whole.phase("cold"), phase("restored", [], delta()))
    assert outcome(lambda: CALLS[name](made)).outcome == "too-few-samples"


def test_every_failure_carries_its_evidence() -> None:
    text = str(outcome(lambda: assert_hit_rate_above(control(), 0.6)))
    for part in (
        "assert_hit_rate_above: the hit rate of any tier in phase 'restored' of 'control' is 0.000",
        "outcome",
        "violated",
        "numerator    0 tokens",
        "denominator  1,980 tokens, vllm:prompt_tokens_total",
        "threshold    > 0.6",
        "phase        restored",
        "n            12 requests",
        "mode restore, seed 0: 12 sessions evict one another",
        "/runs/native.measurement.json",
        "/runs/server.log",
        "what to do: this arm has no connector (recompute)",
    ):
        assert part in text


def test_notes_and_counter_resets_are_part_of_the_evidence() -> None:
    import dataclasses

    made = good(notes=("a note of the run",))
    restored = made.phase("restored")
    meters = dataclasses.replace(restored.delta, resets=("vllm:prompt_tokens_total{}",))
    made = dataclasses.replace(made, phases=(made.phase("cold"), dataclasses.replace(restored, delta=meters)))
    text = str(outcome(lambda: assert_hit_rate_above(made, 0.99)))
    assert "a note of the run" in text
    assert "1 counters went back in the window" in text


def test_it_is_an_assertion_error() -> None:
    assert issubclass(MeterAssertionError, AssertionError)


def test_everything_public_is_exported() -> None:
    public = {name for name in dir(assertions) if name.startswith("assert_")}
    assert public == {name for name in assertions.__all__ if name.startswith("assert_")}
