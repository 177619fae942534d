"""The fixture ``kvoffload_fault``: what it refuses and skips before anything boots."""

from __future__ import annotations

import pytest

CONFIG = """
[connectors.native]
kind = "native"
size_gib = 1
"""


def test_a_fault_that_does_not_apply_skips_and_a_misspelt_one_fails(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", kvoffload=CONFIG)
    pytester.makepyfile(
        """
        def test_not_here(kvoffload_fault):
            kvoffload_fault("redis_gone")

        def test_misspelt(kvoffload_fault):
            kvoffload_fault("redis_gon")

        def test_workload(kvoffload_fault):
            kvoffload_fault("disk_full", prefix=3)
        """
    )
    result = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")
    result.assert_outcomes(skipped=1, failed=2)
    text = result.stdout.str()
    assert "redis_gone: a redis server: a connector of kind 'native' as configured has none" in text
    assert "unknown fault 'redis_gon' (did you mean 'redis_gone'?)" in text
    assert "did you mean 'prefix_tokens'?" in text
