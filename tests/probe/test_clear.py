"""Emptying a tier: each way that a connector may name, what it must not touch, and what is refused."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.errors import ConfigError, WorkloadError
from pytest_kvoffload.probe import measure
from pytest_kvoffload.probe.clear import clear_tier, clear_words, is_new, no_cold_phase
from pytest_kvoffload.records import ConnectorConfig, ServerInfo, TierClear, WorkloadConfig, to_json


def server(*clears: TierClear, resets: bool = True, salted: bool = False) -> ServerInfo:
    return ServerInfo(
        url="http://127.0.0.1:9",
        metrics_urls=(),
        engine_kind="cpu",
        model="m",
        vllm_version="0.32.0",
        max_model_len=None,
        block_size_tokens=None,
        num_gpu_blocks=None,
        kv_transfer_config={"kv_connector": "ExampleConnector"},
        resets=resets,
        clears=clears,
        salted=salted,
    )


def test_a_directory_is_emptied_and_stays(tmp_path: Path) -> None:
    tier, outside = tmp_path / "tier", tmp_path / "outside"
    (tier / "a" / "b").mkdir(parents=True)
    (tier / "a" / "b" / "x.safetensors").write_text("kv")
    (tier / "y").write_text("kv")
    outside.mkdir()
    (outside / "precious").write_text("kept")
    (tier / "link").symlink_to(outside)
    clear_tier(server(TierClear(action="empty_directory", target=str(tier))))
    assert list(tier.iterdir()) == []
    # A link is removed, not followed.
    assert (outside / "precious").read_text() == "kept"


def test_a_directory_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    clear_tier(server(TierClear(action="empty_directory", target=str(tmp_path / "later"))))
    assert not (tmp_path / "later").exists()


def test_a_directory_that_cannot_be_emptied_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(WorkloadError, match=r"the tier's directory .*file was not emptied"):
        clear_tier(server(TierClear(action="empty_directory", target=str(tmp_path / "file"))))


class Endpoint(BaseHTTPRequestHandler):
    """Says "busy" under /busy, takes everything else, and remembers what it was asked."""

    asked: list[str]

    def _answer(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        status, body = (503, b"busy") if self.path == "/busy" else (200, b"{}")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = _answer  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """A base URL, and what was asked there."""
    asked: list[str] = []
    handler = type("Handler", (Endpoint,), {"asked": asked})
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", asked
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("action", ["post", "delete"])
def test_an_endpoint_is_asked(action: str, endpoint: tuple[str, list[str]]) -> None:
    url, asked = endpoint
    clear_tier(server(TierClear(action=action, target=f"{url}/cache/clear")))  # type: ignore[arg-type]
    assert asked == [f"{action.upper()} /cache/clear"]


@pytest.mark.parametrize("action", ["post", "delete"])
def test_an_endpoint_on_this_machine_is_not_asked_through_a_proxy(
    action: str, endpoint: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    url, asked = endpoint
    clear_tier(server(TierClear(action=action, target=f"{url}/cache/clear")))  # type: ignore[arg-type]
    assert asked == [f"{action.upper()} /cache/clear"]


def test_an_endpoint_that_refuses_is_an_error_without_its_password(endpoint: tuple[str, list[str]]) -> None:
    target = f"{endpoint[0]}/busy".replace("http://", "http://me:hunter2@")
    with pytest.raises(WorkloadError, match=r"the tier was not cleared: DELETE http://127.* HTTP 503: busy") as caught:
        clear_tier(server(TierClear(action="delete", target=target)))
    assert "hunter2" not in str(caught.value)


def test_an_endpoint_that_is_not_there_is_an_error() -> None:
    with pytest.raises(WorkloadError, match=r"POST http://127.0.0.1:9/clear failed \(ConnectionError\)"):
        clear_tier(server(TierClear(action="post", target="http://127.0.0.1:9/clear")))


def test_words_name_every_way_and_no_password() -> None:
    words = clear_words(
        (
            TierClear(action="post", target="http://127.0.0.1:1/cache/clear"),
            TierClear(action="empty_directory", target="/var/tier"),
            TierClear(action="redis_flush", target="redis://:hunter2@127.0.0.1:6379/3"),
        )
    )
    assert words == "POST http://127.0.0.1:1/cache/clear, emptying /var/tier, flushing redis://127.0.0.1:6379/3"


def test_why_there_is_no_cold_phase() -> None:
    assert "ExampleConnector cannot be made cold" in no_cold_phase(server())
    assert "nothing is known that empties it" in no_cold_phase(server())
    known = TierClear(action="empty_directory", target="/var/tier")
    assert "the server has no developer mode" in no_cold_phase(server(known, resets=False))


class Told:
    """A fake server that says of itself what a connector would make it say."""

    def __init__(self, fake: FakeVLLM, **changes: object) -> None:
        self.fake, self.changes = fake, changes

    @property
    def info(self) -> ServerInfo:
        return dataclasses.replace(self.fake.info, **self.changes)  # type: ignore[arg-type]

    def check(self) -> None:
        self.fake.check()


def keep_the_tier(fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a reset empties the device only, whatever it is asked: the tier lies elsewhere."""

    def device_only(external: bool) -> bool:
        fake.device.clear()
        return True

    monkeypatch.setattr(fake, "reset", device_only)


@pytest.fixture
def fake() -> Iterator[FakeVLLM]:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as running:
        yield running


EXAMPLE = {"kv_connector": "ExampleConnector"}
ARM = ConnectorConfig(name="arm", kind="example")
WORKLOAD = WorkloadConfig(prefix_tokens=160, suffix_tokens=5, output_tokens=4)


def test_a_tier_that_can_be_neither_salted_nor_cleared_has_no_cold_phase(fake: FakeVLLM) -> None:
    told = Told(fake, kv_transfer_config=EXAMPLE, salted=False)
    with pytest.raises(WorkloadError, match=r"cannot be made cold.*nothing is known that empties it"):
        measure(told, arm="arm", connector=ARM, workload=WORKLOAD)
    assert fake.requests == [], "nothing was sent"


def test_a_tier_that_ignores_salts_is_cleared_and_the_others_beside_it_are_salted(
    fake: FakeVLLM, tmp_path: Path
) -> None:
    (tmp_path / "old").write_text("of an earlier run")
    clear = TierClear(action="empty_directory", target=str(tmp_path))
    told = Told(fake, kv_transfer_config=EXAMPLE, salted=False, clears=(clear,))
    measurement = measure(told, arm="arm", connector=ARM, workload=WORKLOAD)
    assert list(tmp_path.iterdir()) == []
    assert any(f"it is cleared by emptying {tmp_path}" in note for note in measurement.notes)
    assert {body["cache_salt"][:10] for body in fake.requests} == {"kvoffload-"}


def test_a_salt_of_the_workloads_own_is_sent_and_a_second_run_under_it_is_refused(
    fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(fake, kv_transfer_config={"kv_connector": "LMCacheMPConnector"})
    workload = dataclasses.replace(WORKLOAD, cache_salt="shared-7")
    measurement = measure(told, arm="arm", connector=ARM, workload=workload)
    assert {body["cache_salt"] for body in fake.requests} == {"shared-7"}
    assert any("the workload's own cache_salt" in note for note in measurement.notes)
    keep_the_tier(fake, monkeypatch)
    with pytest.raises(WorkloadError, match="the cold phase 'cold' was not cold: 1920 of 1980 prompt tokens"):
        measure(told, arm="arm", connector=ARM, workload=workload)


def test_mode_shared_asks_what_another_server_was_asked(fake: FakeVLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(fake, kv_transfer_config={"kv_connector": "LMCacheMPConnector"})
    workload = dataclasses.replace(WORKLOAD, cache_salt="shared-8")
    measure(told, arm="first", connector=ARM, workload=workload)
    asked = [body["prompt"] for body in fake.requests]
    keep_the_tier(fake, monkeypatch)
    sent = len(fake.requests)
    second = measure(told, arm="second", connector=ARM, workload=dataclasses.replace(workload, mode="shared"))
    assert second.phase_names == ("restored",)
    assert {tuple(body["prompt"]) for body in fake.requests[sent:]} == {tuple(prompt) for prompt in asked}
    assert sum(sample.cached_tokens or 0 for sample in second.phase("restored").samples) == 12 * 160


def test_mode_shared_needs_a_salt(fake: FakeVLLM) -> None:
    with pytest.raises(ConfigError, match=r"\[workload\] cache_salt: got nothing; expected the salt that the other"):
        measure(Told(fake), arm="a", connector=ARM, workload=dataclasses.replace(WORKLOAD, mode="shared"))


def test_no_secret_of_a_connector_is_in_its_measurement(fake: FakeVLLM) -> None:
    store = {"bucket": "b", "access_key": "AKIAPLANTED", "secret_key": "hunter2"}
    planted = ConnectorConfig(
        name="arm",
        kind="raw",
        options={"kv_transfer_config": '{"extra": {"secret_key": "hunter2"}}', "tiers": [{"store_config": store}]},
        args=("--api-key", "hunter2"),
        env={"AWS_SECRET_ACCESS_KEY": "hunter2", "URL": "redis://me:hunter2@host/0"},
    )
    measurement = measure(fake, arm="arm", connector=planted, workload=WORKLOAD)
    text = to_json(measurement).decode()
    assert "hunter2" not in text
    assert "AKIAPLANTED" not in text
    assert '"bucket":"b"' in text


def test_a_tier_that_only_a_new_server_empties_refuses_one_that_has_served() -> None:
    needs_new = TierClear(action="new_server", target="LMCache's local disk")
    with FakeVLLM(FakeConfig(tier_blocks=800)) as fake:
        info = dataclasses.replace(server(needs_new), url=fake.url, metrics_urls=(f"{fake.url}/metrics",))
        assert is_new(info)
        clear_tier(info)
        body = {"model": "fake", "prompt": list(range(64)), "max_tokens": 1, "stream": False}
        requests.post(f"{fake.url}/v1/completions", json=body, timeout=30).raise_for_status()
        assert not is_new(info)
        with pytest.raises(WorkloadError, match="LMCache's local disk cannot be emptied, and this server has served"):
            clear_tier(info)
    assert clear_words([needs_new]) == "starting a new server (LMCache's local disk cannot be emptied)"
