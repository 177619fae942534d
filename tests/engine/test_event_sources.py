"""Where engines publish KV cache events, the arguments that make them, and the cores of data parallel ranks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import requests
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.engine import attach
from pytest_kvoffload.engine.cores import bind_list, data_parallel_size
from pytest_kvoffload.engine.event_sources import booted_sources, event_args, event_sources
from pytest_kvoffload.errors import ConfigError, EngineError, UsageError
from pytest_kvoffload.records import EngineConfig, KVEventSource

LISTENING = EngineConfig(kind="cpu", kv_events=True)


def test_a_booted_server_publishes_on_sockets_of_its_own(tmp_path: Path) -> None:
    flag, text = event_args(LISTENING, ("--seed", "1"), tmp_path)
    config = json.loads(text)
    assert flag == "--kv-events-config"
    assert (config["enable_kv_cache_events"], config["publisher"]) == (True, "zmq")
    one, two = booted_sources(LISTENING, tmp_path, replicas=2)
    assert (one.endpoint, one.replay_endpoint) == (config["endpoint"], config["replay_endpoint"])
    assert one.endpoint.startswith("ipc://")
    assert (one.replica, two.replica) == ("0", "1")
    # vLLM's own rule (kv_events.py offset_endpoint_port): the rank is added to what follows the last colon, and only
    # in an endpoint with "tcp" in it.
    base, _, number = one.endpoint.rpartition(":")
    assert "tcp" in one.endpoint
    assert two.endpoint == f"{base}:{int(number) + 1}"
    assert event_args(EngineConfig(kind="cpu"), (), tmp_path) == ()
    assert booted_sources(EngineConfig(kind="cpu"), tmp_path, replicas=2) == ()


@pytest.mark.parametrize(
    "words", [("--kv-events-config", "{}"), ("--kv-events-config={}",), ("--kv-events-config.x=1",)]
)
def test_two_configurations_of_events_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="kv_events = true writes --kv-events-config itself"):
        event_args(LISTENING, words, tmp_path)


def test_without_zmq_no_server_is_booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'pytest-kvoffload\[events\]'"):
        event_args(LISTENING, (), tmp_path)


def test_a_path_that_is_no_socket_name() -> None:
    with pytest.raises(EngineError, match=r"a Unix socket's path may have 107 bytes.*TMPDIR"):
        event_args(LISTENING, (), Path("/tmp") / ("long" * 30))


def test_an_attached_server_says_where_it_publishes_or_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = EngineConfig(kind="attach", kv_events=True)
    with FakeVLLM() as server, requests.Session() as session:
        with pytest.raises(EngineError, match=r"does not say where it publishes KV cache events \(vLLM before 0.31\)"):
            attach(EngineConfig(kind="attach", url=server.url, kv_events=True))
        server.config.kv_event_sources = {}
        with pytest.raises(EngineError, match="publishes no KV cache events: start it with --kv-events-config"):
            event_sources(attached, server.url, (), session)
        server.config.kv_event_sources = {"0": {"endpoint": "tcp://10.0.0.9:5557"}}
        with pytest.raises(EngineError, match=r"publishes its KV cache events to tcp://10.0.0.9:5557: it connects"):
            event_sources(attached, server.url, (), session)
        server.config.kv_event_sources = {
            "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6557", "topic": "kv"},
            "1": {"endpoint": "tcp://*:5558"},
        }
        assert event_sources(attached, server.url, (), session) == (
            KVEventSource(
                replica="0", endpoint="tcp://127.0.0.1:5557", replay_endpoint="tcp://127.0.0.1:6557", topic="kv"
            ),
            KVEventSource(replica="1", endpoint="tcp://127.0.0.1:5558"),
        )
        place = server.url.removeprefix("http://")
        with FakeVLLM(FakeConfig(kv_event_sources={"0": {"endpoint": "tcp://*:7000"}})) as other:
            found = event_sources(attached, "http://router", (server.url, other.url), session)
            assert [s.replica for s in found] == [f"{place}/0", f"{place}/1", other.url.removeprefix("http://")]
        told = EngineConfig(kind="attach", kv_events=True, kv_event_endpoints=("tcp://a:1", "tcp://b:1"))
        assert [s.replica for s in event_sources(told, server.url, (), session)] == ["a:1", "b:1"]


@pytest.mark.parametrize(
    ("words", "cores", "expected"),
    [
        ((), [0, 1], "0"),
        ((), [3], "3"),
        ((), [0, 1, 2, 3], "0,1,2"),
        (("--data-parallel-size", "2"), [0, 1], "0|1"),
        (("--data-parallel-size=2",), [0], "0|0"),
        (("-dp", "2"), [0, 1, 2, 3, 4], "0,2|1,3"),
        (("-dp", "3"), [0, 1], "0|1|0"),
        (("--tensor-parallel-size", "2"), [0, 1, 2, 3], None),
        (("--tensor-parallel-size", "1", "-dp", "2"), [4, 5], "4|5"),
    ],
)
def test_each_rank_gets_cores_of_its_own(words: tuple[str, ...], cores: list[int], expected: str | None) -> None:
    assert bind_list(words, cores) == expected


@pytest.mark.parametrize("words", [(), ("-dp", "none"), ("--data-parallel-size", "0")])
def test_no_number_is_one_rank(words: tuple[str, ...]) -> None:
    assert data_parallel_size(words) == 1
