from __future__ import annotations

import pytest
from factories import SYNC, control, delta, good, histogram, measurement, phase
from test_assert_common import outcome

from pytest_kvoffload.assertions import assert_load_bandwidth_above, assert_lookup_delay_bounded
from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.records import Measurement


def looked_up(bounds: dict[float, float], total: float, name: str = SYNC, **labels: str) -> Measurement:
    meters = delta(prompt_tokens=1980, rows=histogram(name, bounds, total, labels))
    return measurement(phase("cold", [0.4] * 12), phase("restored", [0.1] * 12, meters))


def test_the_mean_lookup_delay() -> None:
    made = looked_up({0.001: 10, 0.01: 20}, 0.04)
    assert_lookup_delay_bounded(made, 0.002)
    error = outcome(lambda: assert_lookup_delay_bounded(made, 0.0019))
    assert error.outcome == "violated"
    assert "the mean sync lookup delay of tier scheduler is 0.002000 s, allowed is 0.0019 s" in str(error)
    assert outcome(lambda: assert_lookup_delay_bounded(made, 1.0, kind="async")).outcome == "tier-not-exercised"
    assert outcome(lambda: assert_lookup_delay_bounded(control(), 1.0)).outcome == "metric-absent"


def test_a_quantile_is_claimed_only_where_buckets_and_count_carry_it() -> None:
    made = looked_up({0.001: 150, 0.01: 200}, 0.4)
    assert_lookup_delay_bounded(made, 0.01, q=0.99)
    assert outcome(lambda: assert_lookup_delay_bounded(made, 0.001, q=0.99)).outcome == "violated"
    inside = outcome(lambda: assert_lookup_delay_bounded(made, 0.005, q=0.99))
    assert inside.outcome == "too-few-samples"
    assert "no bucket bound tells" in str(inside)
    few = looked_up({0.001: 10}, 0.001)
    error = outcome(lambda: assert_lookup_delay_bounded(few, 1.0, q=0.99))
    assert error.outcome == "too-few-samples"
    assert "it needs 100" in str(error)


def test_tiers_are_told_apart() -> None:
    name = "vllm:kv_offload_tiering_lookup_sync_delay_seconds"
    made = looked_up({0.001: 10}, 0.001, name, tier="1:fs")
    meters = made.phase("restored").delta
    object.__setattr__(meters, "families", {**meters.families, name: "histogram"})
    assert_lookup_delay_bounded(made, 0.001, tier="1:fs")
    error = outcome(lambda: assert_lookup_delay_bounded(made, 0.001, tier="2:obj"))
    assert error.outcome == "metric-absent"
    assert "no sync lookup delay of tier '2:obj'" in str(error)
    with pytest.raises(UsageError, match=r"unknown tier 'schedular'.*did you mean 'scheduler'"):
        assert_lookup_delay_bounded(made, 0.001, tier="schedular")


def test_load_bandwidth() -> None:
    assert_load_bandwidth_above(good(), 9e8)
    error = outcome(lambda: assert_load_bandwidth_above(good(), 1.1e9))
    assert error.outcome == "violated"
    assert "loads run at 1,000,000,000 bytes/s (1 GB/s)" in str(error)
    unloaded = measurement(phase("restored", [0.1] * 12, delta(prompt_tokens=1980)))
    assert outcome(lambda: assert_load_bandwidth_above(unloaded, 1)).outcome == "tier-not-exercised"
    assert outcome(lambda: assert_load_bandwidth_above(control(), 1)).outcome == "metric-absent"
