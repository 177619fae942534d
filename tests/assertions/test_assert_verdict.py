from __future__ import annotations

from math import comb

import pytest
from factories import PREFIX, PROMPT, control, delta, good, measurement, phase
from test_assert_common import outcome

from pytest_kvoffload.assertions import assert_offload_helps
from pytest_kvoffload.assertions.verdict import sign_probability
from pytest_kvoffload.records import Measurement


def arm(times: list[float], *, external: float = 12 * PREFIX, load_time: float = 0.003, **how: object) -> Measurement:
    meters = delta(prompt_tokens=PROMPT * len(times), external=external, load_bytes=3e6, load_time=load_time)
    return measurement(
        phase("cold", [0.4] * len(times), delta(prompt_tokens=PROMPT * len(times), store_bytes=3e6)),
        phase("restored", times, meters),
        **how,  # type: ignore[arg-type]
    )


def test_a_tier_that_helps_passes_with_and_without_a_control() -> None:
    assert_offload_helps(good(), control())
    assert_offload_helps(good())


def test_no_reuse_is_the_first_thing_said_and_the_only_advice() -> None:
    made = arm([0.39] * 12, external=0, mode="no_reuse")
    error = outcome(lambda: assert_offload_helps(made, control()))
    assert error.outcome == "tier-not-exercised"
    text = str(error)
    assert "does not help: reuse and median failed" in text
    assert "FAILS: 0.000 of prompt tokens came through the connector (0 of 1,980), at least 0.1 asked" in text
    assert text.count("what to do:") == 1
    assert "the traffic has no reuse" in text


def test_hits_that_do_not_shorten_the_median() -> None:
    error = outcome(lambda: assert_offload_helps(arm([0.38] * 12), control()))
    assert error.outcome == "violated"
    text = str(error)
    assert "does not help: median failed (2 of 3 hold)" in text
    assert "holds: 0.970 of prompt tokens" in text
    assert "what to do: recomputing 165 tokens may simply be as cheap" in text or "chunks are small" in text


def test_a_slow_link_is_named() -> None:
    error = outcome(lambda: assert_offload_helps(arm([0.41] * 12, load_time=12 * 0.3), control()))
    assert "the interconnect is too slow for this model: loads take 0.3000 s a request, 0.000833 GB/s" in str(error)


def test_a_gain_by_chance_is_not_a_gain() -> None:
    # Nine of twelve faster: more than half, yet one run in fourteen looks like this without any effect.
    times = [0.3] * 9 + [0.42] * 3
    text = str(outcome(lambda: assert_offload_helps(arm(times), control())))
    assert "9 of 12 became faster (by chance with probability 0.073, at most 0.05)" in text
    assert_offload_helps(arm([0.3] * 10 + [0.4] * 2), control())


def test_a_tail_that_grew() -> None:
    error = outcome(lambda: assert_offload_helps(arm([0.1] * 10 + [2.0] * 2, concurrency=4), control()))
    text = str(error)
    assert "does not help: tail failed" in text
    assert "p90 2.0000 s against 0.3820 s (12 samples carry a p90)" in text
    assert "vllm#44294" in text


def test_too_few_equal_requests_and_absent_metrics_are_no_verdict() -> None:
    assert outcome(lambda: assert_offload_helps(good(4), control(4))).outcome == "too-few-samples"
    blind = measurement(phase("cold", [0.4] * 12), phase("restored", [0.1] * 12, delta(prompt_tokens=1, external=None)))
    assert outcome(lambda: assert_offload_helps(blind, control())).outcome == "metric-absent"
    assert (
        outcome(lambda: assert_offload_helps(good(), measurement(phase("cold", [1.0] * 12)))).outcome == "phase-missing"
    )


@pytest.mark.parametrize("n", [1, 5, 12, 24])
def test_the_sign_test_is_the_binomial_tail(n: int) -> None:
    assert sign_probability(0, n) == 1.0
    assert sign_probability(n, n) == 0.5**n
    for k in range(1, n + 1):
        assert sign_probability(k, n) == pytest.approx(sign_probability(k - 1, n) - comb(n, k - 1) / 2**n)
