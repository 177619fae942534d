"""Corrupting the host tier of a running server, from outside: as a memory error would.

Where the tier is a file in /dev/shm (tiering; on a GPU every OffloadingConnector from vLLM 0.27 on) the file is
written. Where it is memory of the engine's own (our spec on the CPU backend, which gives it a name) that memory is
written through /proc/PID/mem.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_kvoffload.faults.catalog import FaultImpossibleError
from pytest_kvoffload.faults.disk import invert

PAGE = 4096
STRETCH = 256 * PAGE
HOST_TIER_NAME = "/memfd:kvoffload_host_tier"
"""What /proc/PID/maps calls the host tier of our spec (``engine/inside/kvoffload_cpu_spec.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """One mapping of a process that is the tier, or a part of it."""

    pid: int
    start: int
    size: int


def corrupt_host_tier(pid: int, *, engine_id: str, shm: Path = Path("/dev/shm")) -> int:
    """Invert every page of the tier that is in use; return how many bytes were changed.

    Args:
        pid: the server; it and all its descendants are looked at.
        engine_id: names the tier's file in /dev/shm.
        shm: where shared memory lies.

    Raises:
        FaultImpossibleError: the tier is not found, or this process may not write another one's memory.
    """
    files = [path for path in sorted(shm.glob(f"vllm_offload_{engine_id}*")) if engine_id]
    if files:
        return sum(_invert_file(path) for path in files)
    found = [mapping for each in _family(pid) for mapping in _mappings_of(each)]
    if not found:
        raise FaultImpossibleError("the host tier cannot be told apart in the memory of the server's processes")
    try:
        return sum(_invert_mapping(mapping) for mapping in found)
    except PermissionError as error:
        raise FaultImpossibleError(f"the engine's memory may not be written ({error}): run it as root") from error


def _family(pid: int) -> list[int]:
    import psutil

    try:
        root = psutil.Process(pid)
        return [pid, *(child.pid for child in root.children(recursive=True))]
    except psutil.Error:
        return []


def _mappings_of(pid: int) -> Iterator[Mapping]:
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith(HOST_TIER_NAME):
            continue
        start, end = (int(word, 16) for word in fields[0].split("-"))
        yield Mapping(pid=pid, start=start, size=end - start)


def _invert_mapping(mapping: Mapping) -> int:
    changed = 0
    with Path(f"/proc/{mapping.pid}/mem").open("r+b", buffering=0) as memory:
        for offset in range(0, mapping.size, STRETCH):
            memory.seek(mapping.start + offset)
            raw = memory.read(min(STRETCH, mapping.size - offset))
            wrong = _invert_pages(raw)
            if wrong is not None:
                memory.seek(mapping.start + offset)
                memory.write(wrong[0])
                changed += wrong[1]
    return changed


def _invert_file(path: Path) -> int:
    changed = 0
    with path.open("r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for offset in range(0, size, STRETCH):
            file.seek(offset)
            wrong = _invert_pages(file.read(min(STRETCH, size - offset)))
            if wrong is not None:
                file.seek(offset)
                file.write(wrong[0])
                changed += wrong[1]
    return changed


def _invert_pages(raw: bytes) -> tuple[bytes, int] | None:
    """Invert the pages that hold anything; ``None`` when none does (the tier's unused part is zeros)."""
    if not raw.strip(b"\0"):
        return None
    out, changed = bytearray(raw), 0
    for at in range(0, len(raw), PAGE):
        page = raw[at : at + PAGE]
        if page.strip(b"\0"):
            out[at : at + len(page)] = invert(page)
            changed += len(page)
    return bytes(out), changed
