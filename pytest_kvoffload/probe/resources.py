"""What a server holds of its host: memory of its processes, and vLLM's files in /dev/shm."""

from __future__ import annotations

import time
from pathlib import Path

from pytest_kvoffload.records import ResourceSnapshot, ServerInfo

SHM_PATTERNS = ("vllm_offload_*", "psm_*", "lmcache*")
"""Shared-memory files of a tier and of multiprocessing, which vLLM uses between its processes."""


def snapshot_resources(
    info: ServerInfo, *, since: ResourceSnapshot | None = None, shm: Path = Path("/dev/shm")
) -> ResourceSnapshot:
    """Look at a server's processes and shared memory.

    Args:
        info: the server; its ``pid`` and all descendants are looked at.
        since: an earlier snapshot: its processes are looked at too, so that those which outlived their parent are
            found after a stop.
        shm: where shared memory lies.
    """
    import psutil

    found: dict[str, psutil.Process] = {}
    roots = [] if info.pid is None else [info.pid]
    for pid in roots:
        try:
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                found[_name(process)] = process
        except psutil.Error:
            continue
    for label in since.processes if since is not None else ():
        try:
            process = psutil.Process(int(label.split()[0]))
            if _name(process) == label:
                found[label] = process
        except psutil.Error:
            continue
    memory, alive = 0, []
    for label, process in found.items():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            memory += _memory(process)
        except psutil.Error:
            continue
        alive.append(label)
    files = sorted(path for pattern in SHM_PATTERNS for path in shm.glob(pattern))
    return ResourceSnapshot(
        taken_at_seconds=time.monotonic(),
        memory_bytes=memory,
        shm_bytes=sum(_size(path) for path in files),
        shm_files=tuple(path.name for path in files),
        processes=tuple(sorted(alive)),
    )


def _name(process: object) -> str:
    import psutil

    assert isinstance(process, psutil.Process)
    # The start time tells a process from a later one with the same number.
    return f"{process.pid} {process.create_time():.2f} {process.name()}"


def _memory(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        return int(process.memory_full_info().pss)
    except (psutil.AccessDenied, AttributeError):
        return int(process.memory_info().rss)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
