"""Tests and gates for vLLM KV-cache offload: what a test file imports.

The names are looked up when they are first used, so that an installed but unused plugin costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pytest_kvoffload._version import __version__

if TYPE_CHECKING:
    from pytest_kvoffload.assertions import (
        MeterAssertionError,
        assert_blocks_stored,
        assert_client_and_server_agree_on_ttft,
        assert_hit_rate_above,
        assert_load_bandwidth_above,
        assert_lookup_delay_bounded,
        assert_no_allocation_failures,
        assert_no_failed_requests,
        assert_no_growth,
        assert_no_stores_without_loads,
        assert_nothing_left_behind,
        assert_offload_helps,
        assert_preemptions_below,
        assert_recovers_within,
        assert_requests_succeed,
        assert_restored_faster_than_cold,
        assert_same_output,
        assert_store_cost_bounded,
        assert_tier_exercised,
        assert_ttft_max_bounded,
        assert_ttft_p50_below,
        assert_ttft_p95_bounded,
        assert_ttft_p99_bounded,
    )
    from pytest_kvoffload.records import (
        ConnectorConfig,
        EngineConfig,
        KVOffloadConfig,
        Measurement,
        ModelConfig,
        PhaseResult,
        RequestSample,
        ServerInfo,
        WorkloadConfig,
        measurement_from_json,
        to_json,
    )

__all__ = [
    "ConnectorConfig",
    "EngineConfig",
    "KVOffloadConfig",
    "Measurement",
    "MeterAssertionError",
    "ModelConfig",
    "PhaseResult",
    "RequestSample",
    "ServerInfo",
    "WorkloadConfig",
    "__version__",
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
    "measurement_from_json",
    "to_json",
]

_RECORDS = frozenset(
    {
        "ConnectorConfig",
        "EngineConfig",
        "KVOffloadConfig",
        "Measurement",
        "ModelConfig",
        "PhaseResult",
        "RequestSample",
        "ServerInfo",
        "WorkloadConfig",
        "measurement_from_json",
        "to_json",
    }
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "records" if name in _RECORDS else "assertions"
    return getattr(importlib.import_module(f"{__name__}.{room}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
