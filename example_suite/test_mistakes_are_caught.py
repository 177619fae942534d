"""A server can be up, healthy and useless. These are the assertions that notice."""

import pytest

from pytest_kvoffload import assert_hit_rate_above, assert_tier_exercised


@pytest.mark.kvoffload("too_small")
def test_a_tier_that_cannot_hold_a_chunk_is_caught(kvoffload_measurement):
    with pytest.raises(AssertionError, match=r"never reached|not exercised"):
        assert_tier_exercised(kvoffload_measurement)
    with pytest.raises(AssertionError):
        assert_hit_rate_above(kvoffload_measurement, 0.6)


@pytest.mark.kvoffload("control")
def test_without_a_connector_there_is_no_hit(kvoffload_measurement):
    with pytest.raises(AssertionError):
        assert_hit_rate_above(kvoffload_measurement, 0.6)
