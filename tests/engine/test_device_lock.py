"""Two runs do not share a device; servers of one run do; a dead holder's claim is nobody's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_kvoffload.engine import devicelock
from pytest_kvoffload.engine.processes import Process, this_process
from pytest_kvoffload.errors import ConfigError, EngineError


@pytest.fixture
def other() -> Iterator[Process]:
    """Another run's process."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "--api-key", "hunter2"]) as process:
        yield Process.of(process.pid)
        process.kill()


def test_another_run_waits_and_is_told_who_holds_the_device(tmp_path: Path, other: Process) -> None:
    devicelock.claim(("cpu",), owner=other, holder=other, wait_seconds=0, directory=tmp_path)
    lines: list[str] = []
    me = this_process()
    with pytest.raises(EngineError) as caught:
        devicelock.claim(("cpu",), owner=me, holder=me, wait_seconds=0.1, progress=lines.append, directory=tmp_path)
    assert f"another run holds the CPU engine: pid {other.pid} (" in str(caught.value)
    assert "KVOFFLOAD_DEVICE_LOCK=off" in str(caught.value)
    assert lines[0].startswith(f"waiting for the CPU engine: held by pid {other.pid}")
    assert "hunter2" not in str(caught.value)


def test_the_same_run_shares_and_the_last_server_frees(tmp_path: Path, other: Process) -> None:
    me = this_process()
    devicelock.claim(("cpu",), owner=me, holder=me, wait_seconds=0, directory=tmp_path)
    devicelock.hand_over(me, me, other, directory=tmp_path)
    devicelock.claim(("cpu",), owner=me, holder=me, wait_seconds=0, directory=tmp_path)
    devicelock.hand_over(me, me, None, directory=tmp_path)
    with pytest.raises(EngineError):
        devicelock.claim(("cpu",), owner=other, holder=other, wait_seconds=0, directory=tmp_path)
    devicelock.hand_over(me, other, None, directory=tmp_path)
    devicelock.claim(("cpu",), owner=other, holder=other, wait_seconds=0, directory=tmp_path)


def test_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        dead = Process.of(process.pid)
        devicelock.claim(("cpu",), owner=dead, holder=dead, wait_seconds=0, directory=tmp_path)
        process.kill()
    me = this_process()
    devicelock.claim(("cpu",), owner=me, holder=me, wait_seconds=0, directory=tmp_path)


def test_distinct_devices_do_not_meet_and_all_of_them_do(tmp_path: Path, other: Process) -> None:
    me = this_process()
    devicelock.claim(("gpu:0",), owner=other, holder=other, wait_seconds=0, directory=tmp_path)
    devicelock.claim(("gpu:1",), owner=me, holder=me, wait_seconds=0, directory=tmp_path)
    devicelock.claim(("cpu",), owner=me, holder=me, wait_seconds=0, directory=tmp_path)
    with pytest.raises(EngineError, match="another run holds the GPUs"):
        devicelock.claim(("gpu:*",), owner=me, holder=me, wait_seconds=0, directory=tmp_path)


def test_a_broken_claims_file_is_no_claim(tmp_path: Path) -> None:
    (tmp_path / "devices.json").write_text("{")
    me = this_process()
    devicelock.claim(("cpu",), owner=me, holder=me, wait_seconds=0, directory=tmp_path)


def test_devices_and_patience_come_from_the_environment() -> None:
    assert devicelock.device_keys(cpu_platform=True, env={"CUDA_VISIBLE_DEVICES": "1"}) == ("cpu",)
    assert devicelock.device_keys(cpu_platform=False, env={"CUDA_VISIBLE_DEVICES": "1, 3"}) == ("gpu:1", "gpu:3")
    assert devicelock.device_keys(cpu_platform=False, env={}) == ("gpu:*",)
    assert devicelock.lock_wait_seconds({}) == 1800
    assert devicelock.lock_wait_seconds({"KVOFFLOAD_DEVICE_LOCK": "off"}) is None
    assert devicelock.lock_wait_seconds({"KVOFFLOAD_DEVICE_LOCK": "7.5"}) == 7.5
    with pytest.raises(ConfigError, match=r"KVOFFLOAD_DEVICE_LOCK: got 'soon'; expected seconds to wait, or off"):
        devicelock.lock_wait_seconds({"KVOFFLOAD_DEVICE_LOCK": "soon"})
