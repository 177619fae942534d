"""Regions of offloaded KV in /dev/shm: which there are, who maps them, and which were left behind.

A killed server leaves its region (``vllm_offload_<engine_id>.mmap``; always with a secondary tier, before 0.29 with
the host tier too), and an LMCache server its pool (``lmcache_l1_pool_<id>``); in transfer mode ``lmcache_driven`` a
worker leaves its caches even after SIGTERM (``lmcache_kv_<pid>_<number>``, LMCache 0.5.6 on a CPU). They hold memory
until they are removed, and a server of the same engine_id cannot start.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

RegionKind: TypeAlias = Literal["vllm", "lmcache"]

_NAMES: tuple[tuple[RegionKind, re.Pattern[str]], ...] = (
    ("vllm", re.compile(r"^vllm_offload_(?P<id>.+?)\.mmap(?:\.\d+)?$")),
    ("lmcache", re.compile(r"^lmcache_l1_pool_(?P<id>.+)$")),
    # The KV caches of a worker of vLLM (its pid, a number), made for a server in transfer mode lmcache_driven.
    ("lmcache", re.compile(r"^lmcache_kv_(?P<id>\d+_\d+)$")),
)
# A server that is about to boot has made its file and not mapped it yet.
_YOUNG_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region file. Sizes are bytes: ``size_bytes`` as asked, ``used_bytes`` as really allocated."""

    path: Path
    kind: RegionKind
    id: str
    """vLLM's engine_id, or the id of LMCache's pool."""
    size_bytes: int
    used_bytes: int
    age_seconds: float
    owners: tuple[int, ...]
    """Processes that map it or hold it open, as far as they are visible here."""
    hidden_processes: int
    """How many processes of the region's user could not be looked into; one of them may be an owner."""

    @property
    def leaked(self) -> bool:
        """Whether nobody can be using it: no owner, nobody who could hide one, and not just being made."""
        return not self.owners and not self.hidden_processes and self.age_seconds >= _YOUNG_SECONDS


def list_regions(shm: Path = Path("/dev/shm"), *, proc: Path = Path("/proc")) -> tuple[Region, ...]:
    """Return the regions of vLLM's offloading and of LMCache in ``shm``, each with its owners.

    Owners are found by device and inode in ``/proc/*/maps`` and ``/proc/*/fd``, so a renamed mount does not hide
    them. Processes of other containers that share this /dev/shm but not the process table are not visible.
    """
    found: list[tuple[Path, RegionKind, str, os.stat_result]] = []
    try:
        entries = sorted(shm.iterdir())
    except OSError:
        return ()
    for entry in entries:
        for kind, pattern in _NAMES:
            if match := pattern.match(entry.name):
                with contextlib.suppress(OSError):  # gone in between: its owner removed it
                    found.append((entry, kind, match["id"], entry.stat()))
    if not found:
        return ()
    owners, hidden = _owners({(s.st_dev, s.st_ino) for _, _, _, s in found}, proc)
    now = time.time()
    return tuple(
        Region(
            path=path,
            kind=kind,
            id=identity,
            size_bytes=stat.st_size,
            used_bytes=stat.st_blocks * 512,
            age_seconds=max(0.0, now - stat.st_mtime),
            owners=tuple(sorted(owners.get((stat.st_dev, stat.st_ino), ()))),
            hidden_processes=hidden.get(stat.st_uid, 0),
        )
        for path, kind, identity, stat in found
    )


def leaked_regions(shm: Path = Path("/dev/shm"), *, proc: Path = Path("/proc")) -> tuple[Region, ...]:
    """Return the regions that nobody uses any more."""
    return tuple(region for region in list_regions(shm, proc=proc) if region.leaked)


def remove(regions: Iterable[Region], *, proc: Path = Path("/proc")) -> tuple[Region, ...]:
    """Remove leaked regions and return those that are really gone.

    Each is looked at again first: one that has an owner by now, or is another file by that name, stays.
    """
    removed = []
    for region in regions:
        again = next((r for r in list_regions(region.path.parent, proc=proc) if r.path == region.path), None)
        if again is None or not again.leaked:
            continue
        try:
            region.path.unlink()
        except OSError:
            continue
        removed.append(again)
    return tuple(removed)


def _owners(wanted: set[tuple[int, int]], proc: Path) -> tuple[dict[tuple[int, int], set[int]], dict[int, int]]:
    """Return the processes that hold each wanted file, and how many processes of each user stayed hidden."""
    owners: dict[tuple[int, int], set[int]] = {}
    hidden: dict[int, int] = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            user = folder.stat().st_uid
            held = set(_mapped(folder / "maps"))
        except PermissionError:
            # The files have mode 0600: a process of another user cannot be an owner. The first process of a
            # container belongs to its runtime and is often closed even to root; it is no server.
            if folder.name != "1":
                hidden[user] = hidden.get(user, 0) + 1
            continue
        except OSError:
            continue  # the process ended meanwhile
        with contextlib.suppress(OSError):
            held |= set(_opened(folder / "fd"))
        for file in held & wanted:
            owners.setdefault(file, set()).add(int(folder.name))
    return owners, hidden


def _mapped(maps: Path) -> Iterator[tuple[int, int]]:
    """Yield (device, inode) of each mapping; the layout of the line is that of proc_pid_maps(5)."""
    for line in maps.read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[4] != "0":
            major, _, minor = fields[3].partition(":")
            yield os.makedev(int(major, 16), int(minor, 16)), int(fields[4])


def _opened(fds: Path) -> Iterator[tuple[int, int]]:
    for fd in fds.iterdir():
        try:
            stat = fd.stat()
        except OSError:
            continue  # closed meanwhile, or a socket of another network namespace
        yield stat.st_dev, stat.st_ino
