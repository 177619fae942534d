"""Processes beside a server: ready before it, gone after it, killed and started again for a fault."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import requests

from pytest_kvoffload.engine import RunningServer, boot
from pytest_kvoffload.engine.connectors import ConnectorKind, HelperSpec, LaunchContext, LaunchParts, registry
from pytest_kvoffload.engine.helpers import Helper, start_helpers, stop_helpers
from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.engine.processes import free_port, this_process
from pytest_kvoffload.errors import BootError, EngineError, ReadinessTimeoutError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig

FakeBoot = Callable[..., RunningServer]
SERVE = "import http.server as h, sys; h.HTTPServer(('127.0.0.1', int(sys.argv[1])), h.SimpleHTTPRequestHandler)"


def spec(port: int, code: str = f"{SERVE}.serve_forever()", **changes: Any) -> HelperSpec:
    made = HelperSpec(name="store", command=(sys.executable, "-c", code, str(port)), ready_port=port)
    return dataclasses.replace(made, **changes)


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Helper]:
    made = Helper(spec(free_port()), log=tmp_path / "store.log", owner=this_process())
    yield made
    made.stop()


def test_it_is_ready_when_its_port_accepts_and_gone_after_stop(helper: Helper) -> None:
    lines: list[str] = []
    helper.start(progress=lines.append)
    assert helper.alive()
    assert requests.get(f"http://127.0.0.1:{helper.spec.ready_port}/", timeout=5).status_code == 200
    assert any(line.startswith("store: ready after") for line in lines)
    helper.stop()
    helper.stop()
    assert not helper.alive()


def test_it_is_ready_only_when_its_url_answers_200(tmp_path: Path) -> None:
    port = free_port()
    missing = spec(port, ready_url=f"http://127.0.0.1:{port}/missing", timeout_seconds=1.0)
    late = Helper(missing, log=tmp_path / "store.log", owner=this_process())
    with pytest.raises(ReadinessTimeoutError, match=r"store is not ready after 1 s, and still alive; .*/missing"):
        late.start()
    assert not late.alive()


def test_it_can_be_killed_and_started_again_on_the_same_port(helper: Helper) -> None:
    helper.start()
    helper.kill()
    assert not helper.alive()
    assert helper.last_words().startswith("store ended (killed by SIGKILL); log: ")
    helper.start()
    assert helper.alive()


def test_a_helper_that_dies_at_once_names_its_last_words(tmp_path: Path) -> None:
    code = "import sys; print('no licence for this tier', flush=True); sys.exit(4)"
    broken = Helper(spec(free_port(), code), log=tmp_path / "store.log", owner=this_process())
    with pytest.raises(BootError, match=r"store did not start \(exit code 4\): no licence for this tier"):
        broken.start()


def test_a_taken_port_is_said_with_its_holder(helper: Helper, tmp_path: Path) -> None:
    helper.start()
    second = Helper(helper.spec, log=tmp_path / "second.log", owner=this_process())
    with pytest.raises(EngineError, match=rf"store: port {helper.spec.ready_port} on 127.0.0.1 is taken by pid \d+"):
        second.start()


def test_another_process_can_use_and_stop_it(helper: Helper) -> None:
    helper.start()
    adopted = Helper.adopt(json.loads(json.dumps(helper.to_record())))
    assert adopted.alive()
    adopted.stop()
    assert not helper.alive()


def test_when_the_second_fails_the_first_is_stopped_and_their_directory_removed(tmp_path: Path) -> None:
    first, state = free_port(), tmp_path / "state"
    state.mkdir()
    broken = spec(free_port(), "raise SystemExit(1)", name="second")
    with pytest.raises(BootError, match="second did not start"):
        start_helpers([spec(first), broken], run_dir=tmp_path, owner=this_process(), state=state, progress=print)
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{first}/", timeout=2)
    assert not state.exists()


def test_the_first_helpers_end_removes_their_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    started = start_helpers([spec(free_port())], run_dir=tmp_path, owner=this_process(), state=state, progress=print)
    assert state.exists()
    stop_helpers(started)
    assert not state.exists()


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> ConnectorConfig:
    """A connector of a kind that needs a process, a port and a metrics endpoint."""

    def build(options: OptionReader, context: LaunchContext) -> LaunchParts:
        port = context.port("store")
        return LaunchParts(
            kv_transfer_config={"kv_connector": "StoreConnector", "kv_role": "kv_both"},
            helpers=(spec(port, env={"STATE": str(context.scratch)}),) if options.boolean("helper") else (),
            metrics_urls=(f"http://127.0.0.1:{port}/metrics",),
            env={"STORE_PORT": str(port)},
        )

    kind = ConnectorKind(name="helped", summary="for these tests", options=("helper",), build=build)
    kinds = MappingProxyType({**registry.KINDS, "helped": kind})
    monkeypatch.setattr("pytest_kvoffload.engine.connectors.registry.KINDS", kinds)
    return ConnectorConfig(name="helped", kind="helped", options={"helper": True})


def test_a_server_starts_after_its_helper_and_both_end_together(fake_boot: FakeBoot, helped: ConnectorConfig) -> None:
    server = fake_boot(connector=helped)
    (helper,) = server.helpers
    port = helper.spec.ready_port
    assert server.ports == {"store": port}
    assert server.info.environment["STORE_PORT"] == str(port)
    assert server.info.metrics_urls == (f"{server.info.url}/metrics", f"http://127.0.0.1:{port}/metrics")
    assert server.info.helper_logs == {"store": str(helper.log)}
    assert Path(server.state).is_dir()
    assert server.dead_helpers() == ()
    adopted = RunningServer.adopt(json.loads(json.dumps(server.to_record())))
    assert [one.alive() for one in adopted.helpers] == [True]
    server.stop()
    assert not helper.alive()
    assert not Path(server.state).exists()


def test_a_restart_keeps_the_helper_its_port_and_its_directory(fake_boot: FakeBoot, helped: ConnectorConfig) -> None:
    first = fake_boot(connector=helped)
    first.stop(keep_helpers=True)
    assert first.helpers[0].alive()
    assert Path(first.state).is_dir()
    second = fake_boot(connector=helped, previous=first)
    assert second.ports == first.ports
    assert second.state == first.state
    assert second.helpers[0].alive()
    second.stop()
    assert not first.helpers[0].alive()
    assert not Path(first.state).exists()


def test_a_helper_that_died_is_reported(fake_boot: FakeBoot, helped: ConnectorConfig) -> None:
    server = fake_boot(connector=helped)
    server.helpers[0].kill()
    (words,) = server.dead_helpers()
    assert words.startswith("store ended (killed by SIGKILL)")


def test_a_server_that_does_not_boot_takes_its_helper_with_it(
    tmp_path: Path, fake_boot: FakeBoot, helped: ConnectorConfig
) -> None:
    with pytest.raises(BootError, match="eviction_policy 'LRU'"):
        fake_boot("refuse", connector=helped)
    (status,) = (tmp_path / "run").glob("store-*.status.json")
    deadline = time.monotonic() + 5
    while json.loads(status.read_text())["exit_code"] is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert json.loads(status.read_text())["exit_code"] is not None


def test_without_helpers_the_scratch_directory_ends_with_the_server(
    fake_boot: FakeBoot, helped: ConnectorConfig
) -> None:
    server = fake_boot(connector=dataclasses.replace(helped, options={}))
    assert server.helpers == ()
    assert Path(server.state).is_dir()
    server.stop()
    assert not Path(server.state).exists()


def test_a_boot_that_is_refused_leaves_no_scratch_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(EngineError, match="no-python cannot be run"):
        boot(
            engine=EngineConfig(kind="local", python=str(tmp_path / "no-python")),
            model=ModelConfig(),
            connector=ConnectorConfig(name="control", kind="recompute"),
            run_dir=tmp_path / "run",
            owner_pid=os.getpid(),
        )
    assert list(tmp_path.glob("kvo-*")) == []
