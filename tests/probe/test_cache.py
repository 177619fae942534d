from __future__ import annotations

import threading
import time

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

import pytest_kvoffload.probe.cache as cache
from pytest_kvoffload.errors import ScrapeError, ServerDiedError, WorkloadError
from pytest_kvoffload.probe.cache import reset_prefix_cache, settle
from pytest_kvoffload.probe.tier import reset_clears_tier
from pytest_kvoffload.records import ConnectorConfig


def nothing() -> None:
    """The server is alive."""


def test_settle_waits_until_stores_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "POLL_SECONDS", 0.1)
    with FakeVLLM(FakeConfig(tier_blocks=10)) as server:
        ended: list[float] = []

        def store() -> None:
            for _ in range(8):
                with server.lock:
                    server.meters.add("kv_offload_store_bytes", 1000)
                time.sleep(0.05)
            ended.append(time.monotonic())

        thread = threading.Thread(target=store)
        with server.lock:
            server.meters.add("kv_offload_store_bytes", 1000)
        thread.start()
        snapshot = settle(server.info, check=nothing)
        thread.join()
    assert snapshot.taken_at_seconds > ended[0] - 0.1
    stored = [s.value for s in snapshot.samples if s.name == "vllm:kv_offload_store_bytes_total"]
    assert stored == [9000.0]


def test_settle_gives_a_transfer_in_flight_more_time_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "STALE_GAUGE_SECONDS", 0.6)
    with FakeVLLM(FakeConfig(tier_blocks=10, write_in_flight=0.5)) as server:
        begun = time.monotonic()
        settle(server.info, check=nothing)
        assert time.monotonic() - begun >= 0.6


def test_settle_names_running_requests() -> None:
    with (
        FakeVLLM(FakeConfig(always_running=2)) as server,
        pytest.raises(WorkloadError, match=r"did not become quiet within 0.5 s: 2 requests are still running"),
    ):
        settle(server.info, check=nothing, timeout_seconds=0.5)


def test_settle_names_the_counter_that_moves() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=10)) as server:

        def always() -> None:
            with server.lock:
                server.meters.add("kv_offload_store_bytes", 1)

        with pytest.raises(WorkloadError, match="still moving: vllm:kv_offload_store_bytes_total"):
            settle(server.info, check=always, timeout_seconds=0.5)


def test_settle_and_reset_ask_whether_the_server_lives() -> None:
    def dead() -> None:
        raise ServerDiedError("gone")

    with FakeVLLM() as server:
        with pytest.raises(ServerDiedError, match="gone"):
            settle(server.info, check=dead)
        with pytest.raises(ServerDiedError, match="gone"):
            reset_prefix_cache(server.info, external=False, check=dead)


def test_settle_without_metrics_is_a_scrape_error() -> None:
    with FakeVLLM() as server:
        info = server.info
    with pytest.raises(ScrapeError, match="cannot read metrics"):
        settle(info, check=nothing)


def test_reset_reads_the_body_and_counts_refusals() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=10, refuse_resets=3)) as server:
        assert reset_prefix_cache(server.info, external=True, check=nothing) == 3
        assert server.resets == [True]
        assert reset_prefix_cache(server.info, external=False, check=nothing) == 0
        assert server.resets == [True, False]


def test_reset_gives_up_with_what_it_read() -> None:
    with (
        FakeVLLM(FakeConfig(refuse_always=True)) as server,
        pytest.raises(WorkloadError, match=r"it answers '\{\"success\": false\}'"),
    ):
        reset_prefix_cache(server.info, external=False, check=nothing, timeout_seconds=0.2)


def test_reset_without_developer_mode_says_so() -> None:
    with (
        FakeVLLM(FakeConfig(dev_mode=False)) as server,
        pytest.raises(WorkloadError, match="the server runs without VLLM_SERVER_DEV_MODE=1"),
    ):
        reset_prefix_cache(server.info, external=False, check=nothing)


@pytest.mark.parametrize(
    ("kind", "config", "clears"),
    [
        ("recompute", None, True),
        ("native", {"kv_connector": "OffloadingConnector"}, True),
        ("native", {"kv_connector": "SimpleCPUOffloadConnector", "kv_connector_extra_config": {}}, True),
        (
            "tiering",
            {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"secondary_tiers": [{"type": "fs"}]}},
            False,
        ),
        ("raw", {"kv_connector": "LMCacheConnectorV1"}, False),
        ("raw", None, False),
    ],
)
def test_which_tiers_a_reset_empties(kind: str, config: dict[str, object] | None, clears: bool) -> None:
    import dataclasses

    with FakeVLLM() as server:
        info = dataclasses.replace(server.info, kv_transfer_config=config)
    assert reset_clears_tier(info, ConnectorConfig(name="x", kind=kind)) is clears
