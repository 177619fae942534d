"""What the host tier must do for us. Copy, and change the numbers to yours."""

import pytest

from pytest_kvoffload import (
    assert_hit_rate_above,
    assert_no_failed_requests,
    assert_offload_helps,
    assert_same_output,
    assert_tier_exercised,
    assert_ttft_p50_below,
)

pytestmark = pytest.mark.kvoffload("native", control="control")


def test_the_tier_is_reached_and_serves_the_revisit(kvoffload_measurement):
    assert_no_failed_requests(kvoffload_measurement)
    assert_tier_exercised(kvoffload_measurement)
    assert_hit_rate_above(kvoffload_measurement, 0.6, tier="external")


def test_a_restored_prefix_gives_the_same_tokens(kvoffload_measurement):
    assert_same_output(kvoffload_measurement)


def test_a_revisit_is_faster_than_recomputing(kvoffload_measurement, kvoffload_control):
    assert_ttft_p50_below(kvoffload_measurement, relative_to=kvoffload_control, factor=0.9)
    assert_offload_helps(kvoffload_measurement, control=kvoffload_control)
