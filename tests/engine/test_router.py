"""Attaching to a router: its engines are found, read and reset one by one. The router is a real one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from fakes.fake_vllm import FakeConfig, FakeVLLM
from fakes.router import ROUTER, router

import pytest_kvoffload.probe.cache as cache
from pytest_kvoffload import assert_hit_rate_above
from pytest_kvoffload.assertions import MeterAssertionError
from pytest_kvoffload.engine import attach
from pytest_kvoffload.engine.fleet import workers
from pytest_kvoffload.errors import EngineError, ServerDiedError
from pytest_kvoffload.metrics.hit_rate import HitRate
from pytest_kvoffload.metrics.replicas import hit_rates, place_name
from pytest_kvoffload.probe import measure
from pytest_kvoffload.probe.cache import reset_prefix_cache
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, WorkloadConfig

pytestmark = pytest.mark.skipif(ROUTER is None, reason="vllm-router has no wheel for this machine")
NATIVE = ConnectorConfig(name="native", kind="native", options={"size_gib": 1.0})
WORKLOAD = WorkloadConfig(prefix_tokens=160, suffix_tokens=5, output_tokens=2, sessions=12)


@pytest.fixture
def engines() -> Iterator[tuple[FakeVLLM, FakeVLLM]]:
    with (
        FakeVLLM(FakeConfig(tier_blocks=400)) as one,
        FakeVLLM(FakeConfig(tier_blocks=400)) as two,
    ):
        yield one, two


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "POLL_SECONDS", 0.02)


def test_the_routers_engines_are_found_and_each_is_reset(engines: tuple[FakeVLLM, FakeVLLM], tmp_path: Path) -> None:
    with router(*(e.url for e in engines), policy="round_robin", log=tmp_path / "router.log") as url:
        server = attach(EngineConfig(kind="attach", url=url))
        urls = sorted(e.url for e in engines)
        assert server.info.engine_urls == tuple(urls)
        assert server.info.metrics_urls == tuple(f"{url}/metrics" for url in urls)
        assert (server.info.replicas, server.info.resets) == (2, True)
        assert server.info.device_cache_tokens == 2 * 40 * 16
        reset_prefix_cache(server.info, external=True, check=server.check)
        assert [e.resets for e in engines] == [[True], [True]]


def test_what_the_router_itself_does_with_a_reset(engines: tuple[FakeVLLM, FakeVLLM], tmp_path: Path) -> None:
    """The reason for all this: one engine is asked, and without the query. Should it change, the page must too."""
    with router(*(e.url for e in engines), policy="round_robin", log=tmp_path / "router.log") as url:
        requests.post(f"{url}/reset_prefix_cache", params={"reset_external": "true"}, timeout=10)
        assert sorted(e.resets for e in engines) == [[], [False]]


def test_revisits_that_land_on_the_other_engine_are_named(engines: tuple[FakeVLLM, FakeVLLM], tmp_path: Path) -> None:
    with router(*(e.url for e in engines), policy="round_robin", log=tmp_path / "router.log") as url:
        server = attach(EngineConfig(kind="attach", url=url))
        # In turn, and an odd number of them: each session comes back to the engine that did not have it.
        made = measure(server, arm="native", connector=NATIVE, workload=dataclasses.replace(WORKLOAD, sessions=13))
    rates = hit_rates(made.phase("restored").delta, vllm_version="0.32.0", tier="external")
    assert sorted(rates) == sorted(place_name(e.url) for e in engines)
    assert all(isinstance(rate, HitRate) for rate in rates.values())
    with pytest.raises(MeterAssertionError) as caught:
        assert_hit_rate_above(made, 0.6, tier="external")
    assert "each of the 2 replicas has a tier of its own" in str(caught.value)


def test_routing_by_prefix_hits_on_the_engine_that_stored(engines: tuple[FakeVLLM, FakeVLLM], tmp_path: Path) -> None:
    with router(*(e.url for e in engines), policy="consistent_hash", log=tmp_path / "router.log") as url:
        server = attach(EngineConfig(kind="attach", url=url))
        made = measure(server, arm="native", connector=NATIVE, workload=WORKLOAD)
    assert_hit_rate_above(made, 0.6, tier="external")


def test_an_engine_that_is_not_named_is_missed(engines: tuple[FakeVLLM, FakeVLLM], tmp_path: Path) -> None:
    one, two = engines
    with router(one.url, two.url, policy="round_robin", log=tmp_path / "router.log") as url:
        for engine in (
            EngineConfig(kind="attach", url=url, engine_urls=(one.url,)),
            EngineConfig(kind="attach", url=url, metrics_urls=(f"{two.url}/metrics",)),
        ):
            with pytest.raises(EngineError, match=r"has 2 engines \(.*\), and 1 are named .*\[engine\] engine_urls"):
                attach(engine)
        by_metrics = EngineConfig(
            kind="attach", url=url, metrics_urls=tuple(f"{e.url}/metrics" for e in reversed(engines))
        )
        assert attach(by_metrics).info.engine_urls == (two.url, one.url)


def test_an_engine_that_goes_is_named(tmp_path: Path) -> None:
    with FakeVLLM() as one, FakeVLLM() as two:
        server = attach(EngineConfig(kind="attach", url=one.url, engine_urls=(one.url, two.url)))
        server.check()
        two.stop()
        with pytest.raises(ServerDiedError, match=f"the server at {two.url} does not answer /health"):
            server.check()
        two.dead = True


def test_engines_that_cannot_be_one_measurement() -> None:
    with (
        FakeVLLM() as one,
        FakeVLLM(FakeConfig(model="another")) as two,
        FakeVLLM(FakeConfig(num_gpu_blocks=8)) as three,
    ):
        with pytest.raises(EngineError, match="the engines serve different models"):
            attach(EngineConfig(kind="attach", url=one.url, engine_urls=(one.url, two.url)))
        server = attach(EngineConfig(kind="attach", url=one.url, engine_urls=(one.url, three.url)))
        assert server.info.differences == (f"num_gpu_blocks: {one.url} has 40, {three.url} has 8",)
        with pytest.raises(EngineError, match=r"behind .* does not answer: its metrics must be read"):
            attach(EngineConfig(kind="attach", url=one.url, engine_urls=("http://127.0.0.1:9",)))


def test_a_server_is_no_router() -> None:
    with FakeVLLM() as one, requests.Session() as session:
        assert workers(one.url, session) == ()
        info = attach(EngineConfig(kind="attach", url=one.url)).info
        assert (info.engine_urls, info.replicas, info.metrics_urls) == ((), 1, (f"{one.url}/metrics",))
