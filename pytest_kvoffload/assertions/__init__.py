"""``assert_*``: a measurement in, nothing out or a :class:`MeterAssertionError` with the evidence."""

from pytest_kvoffload.assertions.events import assert_blocks_stored
from pytest_kvoffload.assertions.failure import MeterAssertionError, Outcome
from pytest_kvoffload.assertions.faults import assert_recovers_within, assert_requests_succeed
from pytest_kvoffload.assertions.hits import (
    assert_hit_rate_above,
    assert_no_allocation_failures,
    assert_no_failed_requests,
    assert_no_stores_without_loads,
    assert_preemptions_below,
    assert_tier_exercised,
)
from pytest_kvoffload.assertions.latency import (
    assert_client_and_server_agree_on_ttft,
    assert_restored_faster_than_cold,
    assert_store_cost_bounded,
    assert_ttft_max_bounded,
    assert_ttft_p50_below,
    assert_ttft_p95_bounded,
    assert_ttft_p99_bounded,
)
from pytest_kvoffload.assertions.parity import assert_same_output
from pytest_kvoffload.assertions.soak import assert_no_growth, assert_nothing_left_behind
from pytest_kvoffload.assertions.transfers import assert_load_bandwidth_above, assert_lookup_delay_bounded
from pytest_kvoffload.assertions.verdict import assert_offload_helps

__all__ = [
    "MeterAssertionError",
    "Outcome",
    "assert_blocks_stored",
    "assert_client_and_server_agree_on_ttft",
    "assert_hit_rate_above",
    "assert_load_bandwidth_above",
    "assert_lookup_delay_bounded",
    "assert_no_allocation_failures",
    "assert_no_failed_requests",
    "assert_no_growth",
    "assert_no_stores_without_loads",
    "assert_nothing_left_behind",
    "assert_offload_helps",
    "assert_preemptions_below",
    "assert_recovers_within",
    "assert_requests_succeed",
    "assert_restored_faster_than_cold",
    "assert_same_output",
    "assert_store_cost_bounded",
    "assert_tier_exercised",
    "assert_ttft_max_bounded",
    "assert_ttft_p50_below",
    "assert_ttft_p95_bounded",
    "assert_ttft_p99_bounded",
]
