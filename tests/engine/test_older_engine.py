"""The offload specs on the oldest engine that they are for: stores and loads, and the same text comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload import assert_hit_rate_above, assert_no_failed_requests, assert_same_output
from pytest_kvoffload.engine import boot
from pytest_kvoffload.probe import measure
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig, WorkloadConfig

pytestmark = pytest.mark.engine

OLDEST = "0.27.1"
MIB = 2**20


@pytest.mark.parametrize("kind", ["native", "tiering"])
def test_a_revisit_comes_back_from_the_tier(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"cpu_bytes_to_use": 128 * MIB}
    if kind == "tiering":
        # The host tier holds a few prompts only: most of what comes back has been on disk.
        options = {
            "cpu_bytes_to_use": 16 * MIB,
            "secondary_tiers": [{"type": "fs", "root_dir": str(tmp_path / "disk")}],
        }
    connector = ConnectorConfig(name=kind, kind=kind, options=options)
    engine = EngineConfig(kind="cpu", vllm_version=OLDEST)
    with boot(engine=engine, model=ModelConfig(), connector=connector, run_dir=tmp_path / "run") as server:
        assert server.info.vllm_version == OLDEST
        assert server.info.differences == ()
        measurement = measure(server, arm=kind, connector=connector, workload=WorkloadConfig(prefix_tokens=2048))
    assert_no_failed_requests(measurement)
    assert_hit_rate_above(measurement, 0.9, tier="external")
    assert_same_output(measurement)
    assert any((tmp_path / "disk").rglob("*")) == (kind == "tiering")
