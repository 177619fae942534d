"""The measurement on real vLLM: one boot, several modes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_kvoffload import assertions
from pytest_kvoffload.assertions import MeterAssertionError
from pytest_kvoffload.engine import RunningServer, boot
from pytest_kvoffload.metrics.query import total
from pytest_kvoffload.probe import measure
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, Measurement, ModelConfig, WorkloadConfig

pytestmark = pytest.mark.engine

CONNECTOR = ConnectorConfig(name="native", kind="native", options={"size_gib": 0.25})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with boot(
        engine=EngineConfig(kind="cpu", num_gpu_blocks=40, max_model_len=4096),
        model=ModelConfig(),
        connector=CONNECTOR,
        run_dir=tmp_path_factory.mktemp("measure"),
    ) as running:
        yield running


def run(server: RunningServer, mode: str, *, turns: int = 1, output_tokens: int = 8) -> Measurement:
    workload = WorkloadConfig(mode=mode, prefix_tokens=768, suffix_tokens=16, turns=turns, output_tokens=output_tokens)
    return measure(server, arm="native", connector=CONNECTOR, workload=workload)


def external(made: Measurement, phase: str) -> float:
    return total(made.phase(phase).delta, "vllm:prompt_tokens_by_source_total", {"source": "external_kv_transfer"}) or 0


def test_every_revisit_comes_back_from_the_tier_and_says_the_same(server: RunningServer) -> None:
    made = run(server, "restore")
    n = len(made.phase("restored").samples)
    assert made.plan.evicts
    assert external(made, "cold") == 0
    assert external(made, "resident") == 0
    assert external(made, "restored") == n * 768
    # The client's and the server's count of what was cached agree to the token.
    assert sum(sample.cached_tokens or 0 for sample in made.phase("restored").samples) == n * 768
    assertions.assert_no_failed_requests(made)
    assertions.assert_hit_rate_above(made, 0.9, tier="host")
    assertions.assert_same_output(made)
    assertions.assert_no_stores_without_loads(made)
    assertions.assert_client_and_server_agree_on_ttft(made, tolerance_seconds=1.0)


def test_a_second_measurement_starts_cold(server: RunningServer) -> None:
    made = run(server, "restore")
    hits = total(made.phase("cold").delta, "vllm:prefix_cache_hits_total") or 0
    assert (external(made, "cold"), hits) == (0, 0)


def test_traffic_without_reuse_is_refused(server: RunningServer) -> None:
    made = run(server, "no_reuse")
    with pytest.raises(MeterAssertionError, match="the traffic has no reuse") as caught:
        assertions.assert_tier_exercised(made)
    assert caught.value.outcome == "tier-not-exercised"


def test_a_chat_continues_what_was_generated(server: RunningServer) -> None:
    made = run(server, "chat", turns=2, output_tokens=16)
    assertions.assert_no_failed_requests(made)
    first, second = made.phase("cold").samples[0], made.phase("restored").samples[0]
    assert second.prompt_tokens == first.prompt_tokens + len(first.output_token_ids) + 16
    assertions.assert_hit_rate_above(made, 0.9)
    assertions.assert_same_output(made, phase="replayed", against="restored")


def test_a_burst_of_one_prefix_is_served_from_the_tier(server: RunningServer) -> None:
    made = run(server, "burst")
    assert external(made, "burst") > 0
    assertions.assert_hit_rate_above(made, 0.9, phase="burst")
