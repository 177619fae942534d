"""The directory of a disk tier breaks as asked, and is gone afterwards, also when its owner was killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_kvoffload.engine.connectors import SPEC_MODULE, inside_dir
from pytest_kvoffload.faults.catalog import FaultImpossibleError
from pytest_kvoffload.faults.disk import TierDisk, invert
from pytest_kvoffload.faults.janitor import is_mount
from pytest_kvoffload.faults.memory import HOST_TIER_NAME, corrupt_host_tier


def test_a_full_disk_is_full_and_then_not() -> None:
    with TierDisk(size_bytes=2**20) as disk:
        if not disk.limited:
            pytest.skip(disk.refusal)
        end = disk.fill()
        with (
            pytest.raises(OSError, match="No space left") as full,
            (disk.path / "block").open("wb", buffering=0) as out,
        ):
            out.write(bytes(8192))
        assert full.value.errno == errno.ENOSPC
        end()
        (disk.path / "block").write_bytes(bytes(8192))
        assert [path.name for path in disk.files()] == ["block"]
    assert not disk.path.exists()


def test_without_a_mount_a_full_disk_is_refused_by_name() -> None:
    with TierDisk(mount=False) as disk, pytest.raises(FaultImpossibleError, match="file system of its own"):
        disk.fill()


def test_a_read_only_disk_refuses_writes_and_reads_on() -> None:
    with TierDisk(size_bytes=2**20) as disk:
        (disk.path / "block").write_bytes(b"kv")
        if not disk.limited and os.geteuid() == 0:
            pytest.skip(disk.refusal)
        end = disk.make_read_only()
        with pytest.raises(OSError):  # noqa: PT011  # EROFS where it is mounted, EACCES where it is not
            (disk.path / "other").write_bytes(b"kv")
        assert (disk.path / "block").read_bytes() == b"kv"
        end()
        (disk.path / "other").write_bytes(b"kv")


def test_files_are_inverted_cut_and_deleted() -> None:
    with TierDisk(mount=False) as disk:
        (disk.path / "ab").mkdir()
        block = disk.path / "ab" / "block"
        block.write_bytes(b"0123456789")
        before = block.stat().st_mtime_ns
        assert disk.corrupt_files() == 1
        assert block.read_bytes() == invert(b"0123456789")
        assert block.stat().st_mtime_ns == before
        assert disk.truncate_files() == 1
        assert block.stat().st_size == 5
        assert disk.delete_files() == 1
        assert block.parent.is_dir()
        assert disk.files() == []


def test_a_file_that_is_renamed_just_then_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with TierDisk(mount=False) as disk:
        block = disk.path / "block"
        block.write_bytes(b"0123456789")
        monkeypatch.setattr(disk, "files", lambda: [disk.path / "gone.tmp", block])
        assert disk.corrupt_files() == 1
        assert block.read_bytes() == invert(b"0123456789")
        assert disk.truncate_files() == 1
        assert block.stat().st_size == 5


def test_a_killed_owner_leaves_no_mount_and_no_directory() -> None:
    code = (
        "import time\n"
        "from pytest_kvoffload.faults.disk import TierDisk\n"
        "disk = TierDisk(size_bytes=2**20)\n"
        "(disk.path / 'block').write_bytes(b'kv')\n"
        "end = disk.fill() if disk.limited else None\n"
        "print(disk.path, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    path = owner.stdout.readline().strip()
    assert Path(path).is_dir()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 30
    while Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(path).exists()
    assert not is_mount(path)


def test_a_shared_region_is_inverted_where_it_holds_anything(tmp_path: Path) -> None:
    region = tmp_path / "vllm_offload_kvo-1.mmap"
    region.write_bytes(b"\1" * 4096 + bytes(8192) + b"\2" * 100 + bytes(3996))
    changed = corrupt_host_tier(os.getpid(), engine_id="kvo-1", shm=tmp_path)
    assert changed == 8192
    raw = region.read_bytes()
    assert raw[:4096] == b"\xfe" * 4096
    assert raw[4096:12288] == bytes(8192)
    assert raw[12288:12388] == b"\xfd" * 100


def test_private_memory_is_inverted_in_another_process(tmp_path: Path) -> None:
    size, name = 64 * 2**20, HOST_TIER_NAME.removeprefix("/memfd:")
    assert f'HOST_TIER_NAME = "{name}"' in (inside_dir() / f"{SPEC_MODULE}.py").read_text(), "our spec names it so"
    code = (
        "import mmap, os, sys\n"
        f"fd = os.memfd_create({name!r})\n"
        f"os.ftruncate(fd, {size})\n"
        f"tier = mmap.mmap(fd, {size})\n"
        "tier[8192:8196] = b'KVKV'\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(tier[8192:8196].hex(), flush=True)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "ready"
    try:
        changed = corrupt_host_tier(other.pid, engine_id="", shm=tmp_path)
    except FaultImpossibleError as error:
        other.kill()
        other.communicate()
        pytest.skip(str(error))
    out, _ = other.communicate("\n")
    assert changed == 4096
    assert bytes.fromhex(out.strip()) == invert(b"KVKV")


def test_a_tier_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FaultImpossibleError, match="cannot be told apart"):
        corrupt_host_tier(os.getpid(), engine_id="", shm=tmp_path)
