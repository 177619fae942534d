"""Assertions about a fault: requests succeed while it is on, and all is as before soon after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from factories import measurement, phase

from pytest_kvoffload.assertions import MeterAssertionError, assert_recovers_within, assert_requests_succeed
from pytest_kvoffload.records import Measurement, PhaseResult


def part(
    name: str, cached: Sequence[int | None], *, times: Sequence[float] = (0.1,) * 6, failed: Sequence[int] = ()
) -> PhaseResult:
    made = phase(name, times, failed=failed)
    samples = tuple(
        dataclasses.replace(
            sample,
            cached_tokens=tokens,
            sent_at_seconds=float(sample.index),
            first_token_at_seconds=None if not sample.ok else sample.index + times[sample.index],
        )
        for sample, tokens in zip(made.samples, cached, strict=True)
    )
    return dataclasses.replace(made, samples=samples)


def run(*after: PhaseResult, complete: bool = True) -> Measurement:
    return measurement(part("cold", [0] * 6), part("restored", [160] * 6), *after, mode="fault", complete=complete)


def test_answered_requests_succeed_with_or_without_hits() -> None:
    assert_requests_succeed(run(part("fault", [0] * 6)))


def test_a_failed_request_is_named() -> None:
    with pytest.raises(MeterAssertionError) as caught:
        assert_requests_succeed(run(part("fault", [0] * 6, failed=(4,))))
    assert caught.value.outcome == "violated"
    assert "5 of 6 requests were answered in phase 'fault', all must be" in str(caught.value)
    assert "HTTP 500: boom" in str(caught.value)
    assert_requests_succeed(run(part("fault", [0] * 6, failed=(4,))), min_share=0.8)


def test_requests_that_failed_before_a_death_have_failed() -> None:
    with pytest.raises(MeterAssertionError) as caught:
        assert_requests_succeed(run(part("fault", [0] * 6, failed=(4, 5)), complete=False))
    assert caught.value.outcome == "violated"
    with pytest.raises(MeterAssertionError) as caught:
        assert_requests_succeed(run(part("fault", [0] * 6), complete=False))
    assert caught.value.outcome == "incomplete"


def test_without_the_phase_nothing_is_said() -> None:
    with pytest.raises(MeterAssertionError) as caught:
        assert_requests_succeed(run())
    assert caught.value.outcome == "phase-missing"


def test_recovery_is_counted_in_requests_or_seconds() -> None:
    made = run(part("recovered", [0, 0, 160, 160, 160, 160]))
    assert_recovers_within(made, requests=2)
    assert_recovers_within(made, seconds=1.0)
    with pytest.raises(MeterAssertionError) as caught:
        assert_recovers_within(made, requests=1)
    assert caught.value.outcome == "violated"
    assert "had not recovered within 1 requests: 1 later requests differ, the last of them number 2 of 6" in str(
        caught.value
    )
    assert "0 cached tokens, 160 before the fault" in str(caught.value)
    with pytest.raises(MeterAssertionError, match=r"within 0\.5 s"):
        assert_recovers_within(made, seconds=0.5)


def test_a_failed_request_after_the_fault_has_not_recovered() -> None:
    with pytest.raises(MeterAssertionError, match="failed: HTTP 500: boom"):
        assert_recovers_within(run(part("recovered", [160] * 6, failed=(5,))), requests=2)


def test_time_to_first_token_can_be_asked_for_too() -> None:
    made = run(part("recovered", [160] * 6, times=(0.1, 0.1, 0.1, 0.1, 0.1, 0.9)))
    assert_recovers_within(made, requests=0)
    with pytest.raises(MeterAssertionError, match=r"first token after 0\.900 s, at most 0\.200 s is asked"):
        assert_recovers_within(made, requests=0, ttft_factor=2)


def test_a_server_that_does_not_report_hits_cannot_be_judged() -> None:
    made = measurement(part("restored", [None] * 6), part("recovered", [160] * 6))
    with pytest.raises(MeterAssertionError) as caught:
        assert_recovers_within(made, requests=0)
    assert caught.value.outcome == "metric-absent"


@pytest.mark.parametrize("bounds", [{}, {"requests": 1, "seconds": 1.0}])
def test_one_bound_is_needed(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="and not both"):
        assert_recovers_within(run(part("recovered", [160] * 6)), **bounds)  # type: ignore[arg-type]
