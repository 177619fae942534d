"""Memory as the container sees it, /dev/shm, leaks and memlock: each found before a boot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_kvoffload.engine.preflight import SystemPaths
from pytest_kvoffload.engine.preflight.memory import (
    check_leaks,
    check_memlock,
    check_memory,
    check_shm,
    read_memory,
)
from pytest_kvoffload.engine.preflight.needs import Needs, derive

GIB = 2**30
MIB = 2**20


def needs_of(tier_bytes: int, *, tiering: bool = False, engine_id: str | None = None) -> Needs:
    extra: dict[str, object] = {"cpu_bytes_to_use": tier_bytes}
    if tiering:
        extra["spec_name"] = "TieringOffloadingSpec"
    config: dict[str, object] = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    if engine_id:
        config["engine_id"] = engine_id
    return derive(transfer_config=config, words=(), env={}, platform="cpu", version="0.32.0")


class Machine:
    """A tree of the kernel's files, as small as the reader needs it."""

    def __init__(self, root: Path, *, total: int, available: int) -> None:
        self.root = root
        self.paths = SystemPaths(shm=root / "shm", proc=root / "proc", cgroup=root / "cgroup")
        self.write("proc/meminfo", f"MemTotal: {total // 1024} kB\nMemAvailable: {available // 1024} kB\n")
        (root / "shm").mkdir()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, total=64 * GIB, available=60 * GIB)


def limit_v2(machine: Machine, folder: str, limit: str, used: int, inactive: int = 0) -> None:
    machine.write(f"{folder}/memory.max", f"{limit}\n")
    machine.write(f"{folder}/memory.current", f"{used}\n")
    machine.write(f"{folder}/memory.stat", f"anon 1\ninactive_file {inactive}\nactive_file 5\n")


def test_without_a_cgroup_the_machine_counts(machine: Machine) -> None:
    memory = read_memory(machine.paths)
    assert (memory.total_bytes, memory.available_bytes, memory.limited_by) == (64 * GIB, 60 * GIB, "the machine")


def test_a_v2_limit_is_the_memory_there_is(machine: Machine) -> None:
    machine.write("cgroup/cgroup.controllers", "memory\n")
    machine.write("proc/self/cgroup", "0::/kube/pod\n")
    limit_v2(machine, "cgroup/kube/pod", str(4 * GIB), used=3 * GIB, inactive=2 * GIB)
    memory = read_memory(machine.paths)
    assert (memory.total_bytes, memory.available_bytes) == (4 * GIB, 3 * GIB)
    assert memory.limited_by.endswith("cgroup/kube/pod/memory.max")
    check = check_memory(needs_of(8 * GIB), machine.paths)
    assert check.status == "fail"
    assert check.saw.startswith("3.00 GiB available of 4.00 GiB (")
    assert "host tier 8.00 GiB" in check.needed
    assert "memory limit of the container" in check.remedy


def test_the_limit_of_a_parent_counts_too(machine: Machine) -> None:
    machine.write("cgroup/cgroup.controllers", "memory\n")
    machine.write("proc/self/cgroup", "0::/kube/pod\n")
    limit_v2(machine, "cgroup/kube/pod", "max", used=GIB)
    limit_v2(machine, "cgroup/kube", str(5 * GIB), used=4 * GIB)
    memory = read_memory(machine.paths)
    assert (memory.total_bytes, memory.available_bytes) == (5 * GIB, GIB)


def test_inside_a_container_the_path_is_the_hosts(machine: Machine) -> None:
    machine.write("cgroup/cgroup.controllers", "memory\n")
    machine.write("proc/self/cgroup", "0::/docker/0123456789ab\n")
    limit_v2(machine, "cgroup", str(2 * GIB), used=GIB)
    assert read_memory(machine.paths).total_bytes == 2 * GIB


def test_v1_limits_and_its_word_for_none(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/other\n0::/\n")
    machine.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    machine.write("cgroup/memory/job/memory.limit_in_bytes", f"{3 * GIB}\n")
    machine.write("cgroup/memory/job/memory.usage_in_bytes", f"{2 * GIB}\n")
    machine.write("cgroup/memory/job/memory.stat", f"cache 7\ntotal_inactive_file {GIB}\n")
    memory = read_memory(machine.paths)
    assert (memory.total_bytes, memory.available_bytes) == (3 * GIB, 2 * GIB)
    assert memory.limited_by.endswith("memory/job/memory.limit_in_bytes")


def test_a_tier_fails_and_a_device_cache_that_may_stay_small_warns(machine: Machine) -> None:
    machine.write("proc/meminfo", f"MemTotal: {64 * MIB} kB\nMemAvailable: {10 * MIB} kB\n")
    assert check_memory(needs_of(20 * GIB), machine.paths).status == "fail"
    assert check_memory(needs_of(20 * GIB, tiering=True), machine.paths).status == "fail"
    roomy = derive(
        transfer_config=None, words=(), env={"VLLM_CPU_KVCACHE_SPACE": "20"}, platform="cpu", version="0.32.0"
    )
    check = check_memory(roomy, machine.paths)
    assert check.status == "warn"
    assert "device cache and weights 20.00 GiB" in check.needed
    assert "may get the server killed" in check.remedy


def test_enough_memory_is_ok(machine: Machine) -> None:
    assert check_memory(needs_of(GIB), machine.paths).status == "ok"


def test_memory_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    check = check_memory(needs_of(GIB), SystemPaths(proc=tmp_path))
    assert check.status == "skip"
    assert "could not be read" in check.saw


@pytest.fixture
def real_cgroup() -> Iterator[Path]:
    """A real memory cgroup of this machine, version 1 or 2."""
    for mount, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        folder = mount / f"kvoffload-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / limit).write_text(str(300 * MIB))
        except OSError:
            if folder.exists():
                folder.rmdir()
            continue
        yield folder
        for _ in range(50):
            try:
                folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)  # the kernel lets go of the last process a moment after its end
        return
    pytest.skip("no memory cgroup can be made here (not root, or a read-only /sys/fs/cgroup)")


def test_a_real_cgroup_limit_is_found(real_cgroup: Path) -> None:
    program = (
        "import os, sys\n"
        f"open({str(real_cgroup / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "from pytest_kvoffload.engine.preflight import SystemPaths\n"
        "from pytest_kvoffload.engine.preflight.memory import check_memory\n"
        "from pytest_kvoffload.engine.preflight.needs import derive\n"
        "config = {'kv_connector': 'OffloadingConnector', 'kv_connector_extra_config': {'cpu_bytes_to_use': 2**30}}\n"
        "needs = derive(transfer_config=config, words=(), env={}, platform='cpu', version='0.32.0')\n"
        "check = check_memory(needs, SystemPaths())\n"
        "print(check.status, check.saw)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("fail ")
    assert f"of 300.00 MiB ({real_cgroup}" in done.stdout


# ------------------------------------------------------------------------------------------------ /dev/shm
@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB, as small as a container's /dev/shm against a tier."""
    folder = tmp_path / "shm"
    folder.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_shm_is_found_and_the_leak_that_fills_it(small_tmpfs: Path) -> None:
    paths = SystemPaths(shm=small_tmpfs)
    needs = derive(
        transfer_config=None, words=(), env={}, platform="cuda", version="0.32.0", expected_shm_bytes=5 * MIB
    )
    assert check_shm(needs, paths).status == "ok"
    leak = small_tmpfs / "vllm_offload_dead.mmap"
    leak.write_bytes(b"\1" * (6 * MIB))
    os.utime(leak, (time.time() - 600,) * 2)
    check = check_shm(needs, paths)
    assert check.status == "fail"
    assert check.saw == f"2.00 MiB free of 8.00 MiB in {small_tmpfs}"
    assert check.needed == "5.00 MiB: the host tier"
    assert check.remedy.startswith("`kvoffload doctor --fix-leaks` frees 6.00 MiB of leaked regions")
    leaks = check_leaks(needs, paths)
    assert leaks.status == "warn"
    assert leaks.saw == "1 without an owner: vllm_offload_dead.mmap (6.00 MiB)"
    leak.unlink()
    assert check_shm(needs, paths).status == "ok"
    assert check_leaks(needs, paths).status == "ok"


def test_shm_is_too_small_for_the_queues_alone(small_tmpfs: Path) -> None:
    check = check_shm(needs_of(GIB), SystemPaths(shm=small_tmpfs))
    assert check.status == "fail"
    assert check.needed == "240.00 MiB: the queues between the server's processes"


def test_a_tier_that_fills_shm_to_the_brim_is_a_warning(small_tmpfs: Path) -> None:
    needs = derive(
        transfer_config=None, words=(), env={}, platform="cuda", version="0.32.0", expected_shm_bytes=8 * MIB - 4096
    )
    assert check_shm(needs, SystemPaths(shm=small_tmpfs)).status == "warn"


def test_no_shm_at_all(tmp_path: Path) -> None:
    paths = SystemPaths(shm=tmp_path / "none")
    assert check_shm(needs_of(GIB, tiering=True), paths).status == "fail"
    idle = derive(transfer_config=None, words=(), env={}, platform="cuda", version=None)
    assert check_shm(idle, paths).status == "skip"


def test_a_region_of_the_same_engine_id_blocks_the_boot(tmp_path: Path) -> None:
    (tmp_path / "vllm_offload_mine.mmap").write_bytes(b"\1" * 4096)
    paths = SystemPaths(shm=tmp_path)
    check = check_leaks(needs_of(GIB, tiering=True, engine_id="mine"), paths)
    assert check.status == "fail"
    assert check.saw == f"{tmp_path}/vllm_offload_mine.mmap is there already, without a visible owner"
    assert check_leaks(needs_of(GIB, tiering=True, engine_id="other"), paths).status == "ok"


# ------------------------------------------------------------------------------------------------ memlock
def cuda_needs(tier_bytes: int) -> Needs:
    return derive(
        transfer_config=None, words=(), env={}, platform="cuda", version="0.32.0", expected_shm_bytes=tier_bytes
    )


def test_memlock_is_asked_of_gpu_engines_only(machine: Machine) -> None:
    assert check_memlock(needs_of(GIB), machine.paths).status == "skip"
    assert check_memlock(cuda_needs(0), machine.paths).status == "skip"


def test_a_small_memlock_limit_is_a_warning(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (8 * MIB, 8 * MIB))
    check = check_memlock(cuda_needs(GIB), machine.paths)
    assert (check.status, check.saw) == ("warn", "a limit of 8.00 MiB")
    assert "--ulimit memlock=-1" in check.remedy
    assert check_memlock(cuda_needs(4 * MIB), machine.paths).status == "ok"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert check_memlock(cuda_needs(GIB), machine.paths).saw == "no limit"


def test_root_with_the_capability_has_no_limit(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    machine.write("proc/self/status", "Name: x\nCapEff:\t0000000000004000\n")
    assert check_memlock(cuda_needs(GIB), machine.paths).status == "ok"
    machine.write("proc/self/status", "Name: x\nCapEff:\t0000000000000001\n")
    assert check_memlock(cuda_needs(GIB), machine.paths).status == "warn"
