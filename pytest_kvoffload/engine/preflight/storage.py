"""Whether a tier's directory can be used: there or creatable, writable, with room, and not in memory by mistake."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from pytest_kvoffload.engine.preflight.report import Check, size

_MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_LEAST_BYTES = 2**30


def check_tier_dir(directory: Path, *, wanted_bytes: int) -> Check:
    """Write a file where the tier will write, and remove it again.

    A directory that is not there yet is tried at its nearest parent, and not left behind.

    Args:
        directory: root of the tier.
        wanted_bytes: room that the tier can be expected to take; a tier of type ``fs`` has no limit of its own.
    """
    name = f"tier directory {directory}"
    needed = "a directory that this user can write to"
    base = directory
    while not base.exists() and base != base.parent:
        base = base.parent
    if not base.is_dir():
        return Check(
            name=name,
            status="fail",
            saw=f"{base} is a file",
            needed=needed,
            remedy="remove the file, or point root_dir elsewhere",
        )
    try:
        _try_writing(base)
    except OSError as error:
        return Check(
            name=name,
            status="fail",
            saw=f"{base} cannot be written: {error.strerror or error}",
            needed=needed,
            remedy="make it writable for this user (mount options, owner, mode), or point root_dir elsewhere",
        )
    free = shutil.disk_usage(base).free
    wanted = max(wanted_bytes, _LEAST_BYTES)
    kind = filesystem_of(base)
    saw = f"writable, {size(free)} free" + (f" ({kind})" if kind else "")
    needed = f"{needed}, {size(wanted)} free"
    if kind in _MEMORY_FILESYSTEMS:
        return Check(
            name=name,
            status="warn",
            saw=saw,
            needed=needed,
            remedy="this is memory, not a disk: it counts against the memory limit and measures no disk",
        )
    if free < wanted:
        return Check(
            name=name,
            status="warn",
            saw=saw,
            needed=needed,
            remedy="free space, or clear the tier's directory: the fs tier grows without a limit of its own",
        )
    return Check(name=name, status="ok", saw=saw, needed=needed)


def filesystem_of(path: Path) -> str | None:
    """Return the type of the file system that holds ``path``, ``None`` where it cannot be told."""
    import psutil

    real = Path(os.path.realpath(path))
    best: tuple[int, str] | None = None
    for partition in psutil.disk_partitions(all=True):
        mount = Path(partition.mountpoint)
        # Of two mounts on one point the later hides the earlier.
        if (real == mount or mount in real.parents) and (best is None or len(mount.parts) >= best[0]):
            best = (len(mount.parts), partition.fstype)
    return best[1] if best else None


def _try_writing(base: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=base, prefix=".kvoffload-preflight-") as probe:
        probe.write(b"kvoffload")
        probe.flush()
        os.fsync(probe.fileno())
