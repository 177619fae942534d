"""The small parts around processes: identity, ports, /dev/shm names."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from pytest_kvoffload.engine import guard
from pytest_kvoffload.engine.processes import Process, free_port, port_holder, port_is_free, this_process


def test_a_process_is_named_by_pid_and_start_time() -> None:
    me = this_process()
    assert me.alive()
    assert me.start is not None
    assert not Process(me.pid, me.start + 1).alive()
    assert not Process(me.pid, None).alive()
    assert Process.of(me.pid) == me
    assert len({Process.of(me.pid), me}) == 1


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout as out:
        out.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert guard.start_ticks(child.pid) is None
    child.wait()


def test_descendants_are_found_through_generations() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = guard.descendants(os.getpid())
        assert child.pid in found
        assert len(set(guard.descendants(child.pid)) & set(found)) == 1


def test_only_the_engines_own_regions_are_removed(tmp_path: Path) -> None:
    for name in ("vllm_offload_a1.mmap", "vllm_offload_a1_dp0.mmap", "vllm_offload_b2.mmap", "psm_1"):
        (tmp_path / name).touch()
    assert sorted(guard.remove_shared_memory("a1", str(tmp_path))) == [
        "vllm_offload_a1.mmap",
        "vllm_offload_a1_dp0.mmap",
    ]
    assert guard.remove_shared_memory("", str(tmp_path)) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["psm_1", "vllm_offload_b2.mmap"]


def test_a_semaphore_is_found_although_it_is_mapped_under_another_name() -> None:
    began = time.time()
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    file = f"/dev/shm/sem.{semaphore._semlock.name.removeprefix('/')}"  # type: ignore[attr-defined]
    assert Path(file).exists()
    assert file in guard.mapped_shared_memory([os.getpid()], since=began)
    assert file not in guard.mapped_shared_memory([os.getppid()], since=began)
    assert file not in guard.mapped_shared_memory([os.getpid()], since=time.time() + 60.0)


def test_ports() -> None:
    assert port_is_free(free_port())
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not port_is_free(port)
        assert port_holder(port).startswith(f" by pid {os.getpid()} (")
