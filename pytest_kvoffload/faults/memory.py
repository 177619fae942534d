"""Corrupting the host tier of a running server, from outside: as a memory error would.

Where the tier is a file in /dev/shm (tiering; on a GPU every OffloadingConnector from vLLM 0.27 on) the file is
written. Where it is private memory of the engine (our spec on the CPU backend) that memory is written through
/proc/PID/mem; it is recognised by its size, which is the configured one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_kvoffload.faults.catalog import FaultImpossibleError
from pytest_kvoffload.faults.disk import invert

PAGE = 4096
STRETCH = 256 * PAGE
TOLERANCE = 0.1
"""How far the mappings' sizes may add up to something else than the tier's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """One anonymous, writable, private mapping of a process."""

    pid: int
    start: int
    size: int


def corrupt_host_tier(pid: int, *, engine_id: str, size_bytes: int, shm: Path = Path("/dev/shm")) -> int:
    """Invert every page of the tier that is in use; return how many bytes were changed.

    Args:
        pid: the server; it and all its descendants are looked at.
        engine_id: names the tier's file in /dev/shm.
        size_bytes: the tier's configured size.

    Raises:
        FaultImpossibleError: the tier is not found, or this process may not write another one's memory.
    """
    files = [path for path in sorted(shm.glob(f"vllm_offload_{engine_id}*")) if engine_id]
    if files:
        return sum(_invert_file(path) for path in files)
    found = find_tier(_mappings(pid), size_bytes)
    if not found:
        raise FaultImpossibleError(
            f"the host tier of {size_bytes} bytes is not recognised in the memory of the server's processes"
        )
    try:
        return sum(_invert_mapping(mapping) for mapping in found)
    except PermissionError as error:
        raise FaultImpossibleError(
            f"this process may not write the engine's memory ({error}): run it as root"
        ) from error


def find_tier(mappings: Sequence[Mapping], size_bytes: int) -> list[Mapping]:
    """Return the mappings that are the tier: the largest of one process that add up to its size."""
    for pid in sorted({mapping.pid for mapping in mappings}):
        largest = sorted((m for m in mappings if m.pid == pid), key=lambda m: m.size, reverse=True)
        total = 0
        for count, mapping in enumerate(largest, 1):
            total += mapping.size
            if abs(total - size_bytes) <= TOLERANCE * size_bytes:
                return largest[:count]
            if total > size_bytes * (1 + TOLERANCE):
                break
    return []


def _mappings(pid: int) -> list[Mapping]:
    return [mapping for each in _family(pid) for mapping in _mappings_of(each)]


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
        if fields[1] != "rw-p" or fields[4] != "0" or (len(fields) > 5 and not fields[5].startswith("[anon")):
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
