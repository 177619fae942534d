from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from fakes.fake_vllm import FakeVLLM

from pytest_kvoffload.assertions import assert_nothing_left_behind
from pytest_kvoffload.probe import snapshot_resources
from pytest_kvoffload.records import ServerInfo

SLEEPER = "import time; print('up', flush=True); time.sleep(60)"


def info_of(pid: int | None) -> ServerInfo:
    with FakeVLLM() as server:
        return dataclasses.replace(server.info, pid=pid)


def test_processes_memory_and_files_are_seen_and_gone_after_the_end(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"12")
    before = snapshot_resources(info_of(None), shm=tmp_path)
    assert (before.processes, before.memory_bytes, before.shm_files) == ((), 0, ())
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        info = info_of(process.pid)
        (tmp_path / "vllm_offload_1.mmap").write_bytes(b"x" * 100)
        during = snapshot_resources(info, shm=tmp_path)
        assert len(during.processes) == 1
        assert during.processes[0].startswith(f"{process.pid} ")
        assert during.memory_bytes > 1_000_000
        assert (during.shm_files, during.shm_bytes) == (("vllm_offload_1.mmap",), 100)
        process.kill()
    (tmp_path / "vllm_offload_1.mmap").unlink()
    after = snapshot_resources(info, since=during, shm=tmp_path)
    assert_nothing_left_behind(before, after)
    assert after.processes == ()


def test_a_process_that_outlived_its_parent_is_found_by_the_earlier_snapshot(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        info = info_of(parent.pid)
        during = snapshot_resources(info, shm=tmp_path)
        assert len(during.processes) == 2
        parent.kill()
    after = snapshot_resources(info, since=during, shm=tmp_path)
    try:
        (left,) = after.processes
        assert left in during.processes
    finally:
        import os
        import signal

        for name in after.processes:
            os.kill(int(name.split()[0]), signal.SIGKILL)
