"""Every way a boot can end badly is one message that names the cause; a good boot leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from pytest_kvoffload.engine import RunningServer, attach
from pytest_kvoffload.engine.processes import Process
from pytest_kvoffload.errors import (
    BootError,
    ConfigError,
    EngineError,
    ReadinessTimeoutError,
    ServerDiedError,
    UsageError,
)
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig

FakeBoot = Callable[..., RunningServer]


def regions(server: RunningServer) -> list[str]:
    assert server.supervision is not None
    return [path.name for path in Path("/dev/shm").glob(f"vllm_offload_{server.supervision.engine_id}*")]


def gone(process: Process, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not process.alive()


def test_a_good_boot_tells_about_itself_and_leaves_nothing(fake_boot: FakeBoot) -> None:
    lines: list[str] = []
    server = fake_boot(progress=lines.append, engine={"num_gpu_blocks": 64})
    info = server.info
    assert (info.vllm_version, info.block_size_tokens, info.num_gpu_blocks) == ("0.32.0", 128, 64)
    assert info.device_cache_tokens == 64 * 128
    assert info.resets
    assert info.differences == ()
    assert info.kv_transfer_config is not None
    assert info.kv_transfer_config["kv_connector_extra_config"]["spec_name"] == "KVOffloadHostSpec"
    assert info.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "inside" in info.environment["PYTHONPATH"]
    assert any("ready after" in line for line in lines)
    assert server.alive()
    assert regions(server)
    assert info.pid is not None
    process, scratch = Process.of(info.pid), requests.get(f"{info.url}/server_info", timeout=5).json()["environment"]
    assert Path(scratch["TMPDIR"]).is_dir()
    server.stop()
    server.stop()
    assert not process.alive()
    assert not regions(server)
    assert not Path(scratch["TMPDIR"]).exists()
    assert not server.alive()
    with pytest.raises(ServerDiedError, match="was stopped"):
        server.check()


def test_the_device_cache_of_two_ranks_is_counted_once(fake_boot: FakeBoot) -> None:
    info = fake_boot(engine={"num_gpu_blocks": 64, "args": ("--data-parallel-size", "2")}).info
    assert (info.replicas, info.num_gpu_blocks, info.device_cache_tokens) == (2, 64, 2 * 64 * 128)
    assert not [text for text in info.differences if "num_gpu_blocks" in text]


@pytest.mark.parametrize("name", ["LMCache, lm://", "../up", "a b"])
def test_a_connectors_name_may_be_no_file_name(fake_boot: FakeBoot, tmp_path: Path, name: str) -> None:
    server = fake_boot(connector=ConnectorConfig(name=name, kind="native", options={"size_gib": 1}))
    assert server.alive()
    log = Path(str(server.info.log_path))
    assert log.is_file()
    assert log.parent == tmp_path / "run"
    assert " " not in log.name


def test_another_process_can_use_and_stop_it(fake_boot: FakeBoot) -> None:
    server = fake_boot()
    record = json.loads(json.dumps(server.to_record()))
    adopted = RunningServer.adopt(record)
    assert adopted.info == server.info
    adopted.check()
    adopted.stop()
    assert not server.alive()


def test_a_refused_configuration_names_the_engine_cores_own_error(fake_boot: FakeBoot) -> None:
    with pytest.raises(BootError) as caught:
        fake_boot("refuse")
    text = str(caught.value)
    assert caught.value.cause.startswith("eviction_policy 'LRU' does not exist")
    assert "Engine core initialization failed" not in caught.value.cause
    assert "command: " in text
    assert "--kv-transfer-config" in text
    assert re.search(r"log: .*server-native-\w+\.log", text)
    assert Path(caught.value.log_path).is_file()


def test_a_death_without_a_word_says_the_exit_code(fake_boot: FakeBoot) -> None:
    with pytest.raises(BootError, match=r"did not start: .*(exit|exited).*3"):
        fake_boot("silent-death")


def test_a_server_that_never_listens_says_what_was_awaited(fake_boot: FakeBoot) -> None:
    with pytest.raises(ReadinessTimeoutError) as caught:
        fake_boot("never-ready", engine={"boot_timeout_seconds": 1.5})
    text = str(caught.value)
    assert "not ready after 2 s, and still alive; it was waiting for anything to listen at http://127.0.0.1:" in text
    assert "Loading weights for ever" in text
    assert "boot_timeout_seconds" in text


def test_a_server_that_is_never_healthy_says_its_status(fake_boot: FakeBoot) -> None:
    with pytest.raises(ReadinessTimeoutError, match=r"waiting for /health to answer 200 \(it answers 503\)"):
        fake_boot("unhealthy", engine={"boot_timeout_seconds": 3})


def test_a_server_that_dies_later_names_the_first_cause(fake_boot: FakeBoot) -> None:
    server = fake_boot()
    server.check()
    requests.post(f"{server.info.url}/die", timeout=5)
    deadline = time.monotonic() + 10
    while server.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ServerDiedError) as caught:
        server.check()
    assert "died after it was ready (exit code 1)" in str(caught.value)
    assert "eviction_policy 'LRU' does not exist" in str(caught.value)
    server.stop()
    assert not regions(server)


def test_a_killed_server_is_reported_as_killed(fake_boot: FakeBoot) -> None:
    server = fake_boot()
    assert server.info.pid is not None
    os.kill(server.info.pid, signal.SIGKILL)
    assert gone(Process.of(server.info.pid))
    with pytest.raises(ServerDiedError, match="killed by SIGKILL"):
        server.check()
    server.stop()
    assert not regions(server)


def test_shared_memory_of_a_killed_servers_children_is_removed(fake_boot: FakeBoot, tmp_path: Path) -> None:
    server = fake_boot("shared-memory")
    region = Path("/dev/shm") / (tmp_path / "state").read_text()
    assert region.exists()
    assert server.info.pid is not None
    os.kill(server.info.pid, signal.SIGKILL)
    server.stop()
    assert not region.exists()


def test_a_boot_that_is_given_up_leaves_the_guard_time_to_clean_up(fake_boot: FakeBoot, tmp_path: Path) -> None:
    # It lets the whole grace pass, as a server does that is still importing on a busy machine.
    with pytest.raises(ReadinessTimeoutError):
        fake_boot("stuck", engine={"boot_timeout_seconds": 3.0})
    region = Path("/dev/shm") / (tmp_path / "state").read_text()
    left = region.exists()
    region.unlink(missing_ok=True)
    assert not left


def test_a_stubborn_server_and_its_detached_child_are_killed(
    fake_boot: FakeBoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_kvoffload.engine.supervise.STOP_GRACE_SECONDS", 0.5)
    stubborn = fake_boot("stubborn")
    assert stubborn.info.pid is not None
    process = Process.of(stubborn.info.pid)
    stubborn.stop()
    assert not process.alive()
    parent = fake_boot("child")
    child = Process.of(int((tmp_path / "state").read_text()))
    assert child.alive()
    parent.stop()
    assert not child.alive()


def test_a_lost_port_race_is_tried_once_more(fake_boot: FakeBoot, tmp_path: Path) -> None:
    lines: list[str] = []
    server = fake_boot("port-taken", progress=lines.append)
    assert server.info.url.rsplit(":", 1)[1] != (tmp_path / "state").read_text()
    assert any("was taken by somebody else meanwhile" in line for line in lines)


def test_a_port_of_the_users_that_is_taken_is_named_with_its_holder(fake_boot: FakeBoot) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port} on 127.0.0.1 is taken by pid {os.getpid()} \("):
            fake_boot(engine={"args": ("--port", str(port))})


def test_a_missing_model_path_is_named(fake_boot: FakeBoot, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"the model path \S*/absent does not exist"):
        fake_boot(model=ModelConfig(path=str(tmp_path / "absent")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineError, match=r"model directory \S*/empty has no config\.json"):
        fake_boot(model=ModelConfig(path=str(tmp_path / "empty")))


def test_an_interpreter_without_vllm_is_named(fake_boot: FakeBoot) -> None:
    with pytest.raises(EngineError, match=r"the running interpreter \S+ \(Python 3\.\d+\.\d+\) has no vllm"):
        fake_boot(env={"PYTHONPATH": ""})
    with pytest.raises(EngineError, match="the interpreter /nowhere/python cannot be run: No such file"):
        fake_boot(engine={"python": "/nowhere/python"})


def test_an_unknown_connector_is_refused_before_anything_starts(fake_boot: FakeBoot) -> None:
    connector = ConnectorConfig(name="fast", kind="natve")
    with pytest.raises(ConfigError, match=r"\[connectors.fast\] kind: got 'natve'.*did you mean 'native'"):
        fake_boot(connector=connector, engine={"python": "/nowhere/python"})


def test_an_effective_configuration_that_differs_is_said(fake_boot: FakeBoot) -> None:
    server = fake_boot("other-config")
    assert server.info.differences == (
        "kv_connector: 'OffloadingConnector' was asked for, but the server has 'LMCacheMPConnector'",
    )


def test_secrets_do_not_reach_the_record_or_the_log(fake_boot: FakeBoot) -> None:
    raw = {"kv_connector": "X", "kv_role": "kv_both", "kv_connector_extra_config": {"secret_key": "hunter2"}}
    server = fake_boot(
        connector=ConnectorConfig(name="raw", kind="raw", options={"kv_transfer_config": raw}),
        env={"HF_TOKEN": "hunter2"},
    )
    assert "hunter2" not in json.dumps(server.to_record())
    assert server.info.differences == ()
    assert "hunter2" not in Path(server.info.log_path or "").read_text()


def test_attach_uses_a_running_server_and_never_stops_it(fake_boot: FakeBoot) -> None:
    server = fake_boot()
    attached = attach(EngineConfig(kind="attach", url=server.info.url + "/"))
    assert attached.info.engine_kind == "attach"
    assert attached.info.num_gpu_blocks == 80
    assert attached.info.model == server.info.model
    attached.check()
    attached.stop()
    assert server.alive()
    with pytest.raises(EngineError, match=r"serves .*, not 'other'"):
        attach(EngineConfig(kind="attach", url=server.info.url), model=ModelConfig(served_name="other"))
    server.stop()
    with pytest.raises(EngineError, match=r"no server answers at http://127.0.0.1:\d+: ConnectionError"):
        attach(EngineConfig(kind="attach", url=server.info.url))
    with pytest.raises(UsageError, match="needs its url"):
        attach(EngineConfig(kind="attach"))


OWNER = """
import sys
from pathlib import Path
from pytest_kvoffload.engine import boot
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig
fakes, model, run, fault = sys.argv[1:5]
owner = int(sys.argv[5]) if len(sys.argv) > 5 else None
server = boot(
    engine=EngineConfig(kind="local", env={"PYTHONPATH": fakes, "FAKE_VLLM": fault, "FAKE_VLLM_STATE": run + "-state"}),
    model=ModelConfig(path=model),
    connector=ConnectorConfig(name="native", kind="native", options={"size_gib": 1}),
    run_dir=Path(run),
    owner_pid=owner,
)
print(server.info.pid, server.supervision.engine_id, flush=True)
if owner is None:
    sys.stdin.read()  # until whoever started this is gone
"""


def start_owner(tmp_path: Path, model_dir: Path, fault: str, *more: str) -> tuple[subprocess.Popen[str], Process, str]:
    fakes = str(Path(__file__).parent / "fakes")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, fakes, str(model_dir), str(tmp_path / "run"), fault, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "KVOFFLOAD_DEVICE_LOCK": "off"},
    )
    assert owner.stdout is not None
    with owner.stdout as out:
        pid, engine_id = out.readline().split()
    return owner, Process.of(int(pid)), engine_id


def finish(owner: subprocess.Popen[str]) -> None:
    assert owner.stdin is not None
    owner.wait(timeout=20)
    owner.stdin.close()


@pytest.mark.parametrize("fault", ["serve", "stubborn", "child"])
def test_the_server_dies_with_a_killed_owner(tmp_path: Path, model_dir: Path, fault: str) -> None:
    owner, server, engine_id = start_owner(tmp_path, model_dir, fault)
    assert server.alive()
    assert list(Path("/dev/shm").glob(f"vllm_offload_{engine_id}*"))
    owner.kill()
    finish(owner)
    # Ten seconds is what users are promised; the wait ends as soon as it is gone.
    assert gone(server)
    deadline = time.monotonic() + 5
    while list(Path("/dev/shm").glob(f"vllm_offload_{engine_id}*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(Path("/dev/shm").glob(f"vllm_offload_{engine_id}*"))
    if fault == "child":
        assert gone(Process.of(int(Path(f"{tmp_path / 'run'}-state").read_text())))


def test_a_server_with_another_owner_outlives_the_process_that_booted_it(tmp_path: Path, model_dir: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
        booter, server, _ = start_owner(tmp_path, model_dir, "serve", str(other.pid))
        finish(booter)
        assert booter.returncode == 0
        time.sleep(0.7)
        assert server.alive()
        other.kill()
    assert gone(server)


def test_ctrl_c_during_a_boot_leaves_nothing(tmp_path: Path, model_dir: Path) -> None:
    fakes, run = str(Path(__file__).parent / "fakes"), tmp_path / "run"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, fakes, str(model_dir), str(run), "never-ready"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KVOFFLOAD_DEVICE_LOCK": "off", "TMPDIR": str(tmp_path)},
    )
    pid = None
    while pid is None:
        assert owner.poll() is None
        time.sleep(0.05)
        for status in run.glob("*.status.json"):
            pid = json.loads(status.read_text())["server_pid"]
    server = Process.of(pid)
    assert server.alive()
    owner.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in owner.communicate(timeout=30)[1]
    assert not server.alive()
    assert not list(tmp_path.glob("kvo-*"))
