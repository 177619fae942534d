"""Regions in /dev/shm: found by name, owners by inode, leaks removed and nothing else."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

from pytest_kvoffload.engine.shm import leaked_regions, list_regions, remove

OLD_SECONDS = 600


def make_region(folder: Path, name: str, *, size: int = 8192, age: float = OLD_SECONDS) -> Path:
    path = folder / name
    path.write_bytes(b"\1" * size)
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_a_region_without_owner_is_leaked_and_can_be_removed(tmp_path: Path) -> None:
    path = make_region(tmp_path, "vllm_offload_abc-123.mmap")
    (region,) = leaked_regions(tmp_path)
    assert (region.path, region.kind, region.id, region.owners) == (path, "vllm", "abc-123", ())
    assert region.size_bytes == 8192
    assert region.age_seconds >= OLD_SECONDS
    assert remove([region]) == (region,) or not path.exists()
    assert not path.exists()
    assert list_regions(tmp_path) == ()


def test_names_of_both_products_and_of_segments(tmp_path: Path) -> None:
    for name in (
        "vllm_offload_x.mmap",
        "vllm_offload_x.mmap.1",
        "lmcache_l1_pool_77",
        "lmcache_kv_4711_0",
        "psm_1234",
        "sem.mp-1",
        "x.mmap",
    ):
        make_region(tmp_path, name)
    assert [(region.path.name, region.kind, region.id) for region in list_regions(tmp_path)] == [
        ("lmcache_kv_4711_0", "lmcache", "4711_0"),
        ("lmcache_l1_pool_77", "lmcache", "77"),
        ("vllm_offload_x.mmap", "vllm", "x"),
        ("vllm_offload_x.mmap.1", "vllm", "x"),
    ]


def test_a_mapped_region_is_owned_after_its_descriptor_is_closed(tmp_path: Path) -> None:
    path = make_region(tmp_path, "vllm_offload_live.mmap")
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 8192)
    try:
        (region,) = list_regions(tmp_path)
        assert region.owners == (os.getpid(),)
        assert not region.leaked
        assert remove([region]) == ()
        assert path.exists()
    finally:
        mapped.close()
    assert list_regions(tmp_path)[0].leaked


def test_an_open_descriptor_is_an_owner_too(tmp_path: Path) -> None:
    path = make_region(tmp_path, "vllm_offload_open.mmap")
    with path.open("rb"):
        assert list_regions(tmp_path)[0].owners == (os.getpid(),)


def test_another_process_is_seen_and_its_end_is_a_leak(tmp_path: Path) -> None:
    path = make_region(tmp_path, "vllm_offload_other.mmap")
    program = (
        "import mmap, sys\nf = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 8192)\n"
        "print('mapped', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mapped\n"
        assert list_regions(tmp_path)[0].owners == (holder.pid,)
        holder.kill()
        holder.wait()
    assert list_regions(tmp_path)[0].leaked


def test_a_file_that_was_just_made_is_no_leak(tmp_path: Path) -> None:
    make_region(tmp_path, "vllm_offload_young.mmap", age=0)
    (region,) = list_regions(tmp_path)
    assert region.owners == ()
    assert not region.leaked


def test_what_got_an_owner_meanwhile_stays(tmp_path: Path) -> None:
    path = make_region(tmp_path, "vllm_offload_race.mmap")
    (region,) = leaked_regions(tmp_path)
    with path.open("rb"):
        assert remove([region]) == ()
    assert path.exists()


def test_a_missing_shm_has_no_regions(tmp_path: Path) -> None:
    assert list_regions(tmp_path / "none") == ()
