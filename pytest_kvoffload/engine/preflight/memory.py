"""Host memory as the container sees it, /dev/shm, leaked regions and the limit on locked memory."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pytest_kvoffload.engine.preflight.needs import Needs
from pytest_kvoffload.engine.preflight.report import Check, listed, size
from pytest_kvoffload.engine.shm import list_regions

# cgroup v1 writes "no limit" as the largest multiple of the page size; no machine has 2**60 bytes.
_NO_LIMIT_BYTES = 2**60
_CAP_IPC_LOCK = 14
_NARROW = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPaths:
    """Where the kernel's files are looked for."""

    shm: Path = Path("/dev/shm")
    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of memory that a new process may count on. ``limited_by`` names the file of the narrowest limit."""

    total_bytes: int
    available_bytes: int
    limited_by: str


def read_memory(paths: SystemPaths) -> HostMemory:
    """Return the narrowest of the machine's memory and the limits of the cgroup and its parents (v1 and v2).

    Page cache that the kernel can drop (``inactive_file``) counts as available, as it does for the machine.

    Raises:
        OSError: no ``meminfo``.
    """
    meminfo = _key_values(paths.proc / "meminfo")
    total, available = meminfo["MemTotal:"] * 1024, meminfo["MemAvailable:"] * 1024
    limited_by = "the machine"
    for folder in _memory_cgroups(paths):
        limit, usage, reclaimable, source = _limits(folder)
        if limit is None:
            continue
        free = max(0, limit - max(0, usage - reclaimable))
        if limit < total:
            total, limited_by = limit, str(source)
        if free < available:
            available, limited_by = free, str(source)
    return HostMemory(total_bytes=total, available_bytes=available, limited_by=limited_by)


def check_memory(needs: Needs, paths: SystemPaths) -> Check:
    """Whether the processes, the device cache of a CPU engine and the tiers fit in memory."""
    try:
        memory = read_memory(paths)
    except (OSError, KeyError, ValueError) as error:
        return Check(name="memory", status="skip", saw=f"the memory of this machine could not be read ({error})")
    saw = f"{size(memory.available_bytes)} available of {size(memory.total_bytes)} ({memory.limited_by})"
    needed = f"{size(needs.host_bytes)}: {needs.host_explanation}"
    remedy = "make the tier smaller, or the memory limit of the container larger (/dev/shm counts against it)"
    if needs.host_bytes > memory.total_bytes:
        return Check(name="memory", status="fail", saw=saw, needed=needed, remedy=remedy)
    if needs.filled_at_boot_bytes > memory.available_bytes:
        return Check(name="memory", status="fail", saw=saw, needed=needed, remedy=remedy)
    if needs.host_bytes * _NARROW > memory.available_bytes:
        why = "a device cache of its full size may get the server killed"
        return Check(name="memory", status="warn", saw=saw, needed=needed, remedy=f"{remedy}; {why}")
    return Check(name="memory", status="ok", saw=saw, needed=needed)


def check_shm(needs: Needs, paths: SystemPaths) -> Check:
    """Whether /dev/shm takes the regions that are filled at boot, and the queues between the processes."""
    try:
        usage = shutil.disk_usage(paths.shm)
    except OSError as error:
        status, remedy = ("fail", f"mount a tmpfs at {paths.shm}") if needs.shm_bytes else ("skip", "")
        return Check(
            name="shm",
            status="fail" if status == "fail" else "skip",
            saw=f"{paths.shm} cannot be used ({error.strerror or error})",
            needed=size(needs.shm_bytes),
            remedy=remedy,
        )
    saw = f"{size(usage.free)} free of {size(usage.total)} in {paths.shm}"
    wanted = max(needs.shm_bytes, needs.queue_bytes)
    if not wanted:
        return Check(name="shm", status="ok", saw=saw, needed="nothing")
    needed = f"{size(wanted)}: {needs.shm_explanation}"
    if usage.free < wanted:
        leaked = sum(region.used_bytes for region in list_regions(paths.shm, proc=paths.proc) if region.leaked)
        remedy = "enlarge it (docker --shm-size or --ipc=host; Kubernetes: an emptyDir with medium: Memory)"
        if needs.shm_bytes > needs.queue_bytes:
            remedy += ", or make the tier smaller"
        if leaked:
            remedy = f"`kvoffload doctor --fix-leaks` frees {size(leaked)} of leaked regions; else {remedy}"
        return Check(name="shm", status="fail", saw=saw, needed=needed, remedy=remedy)
    if needs.shm_bytes * _NARROW > usage.free:
        return Check(
            name="shm", status="warn", saw=saw, needed=needed, remedy="leave a tenth of /dev/shm free for the queues"
        )
    return Check(name="shm", status="ok", saw=saw, needed=needed)


def check_leaks(needs: Needs, paths: SystemPaths) -> Check:
    """Whether killed servers left regions behind, or one blocks this very engine_id."""
    regions = list_regions(paths.shm, proc=paths.proc)
    blocking = [region for region in regions if region.kind == "vllm" and region.id in needs.engine_ids]
    leaked = [region for region in regions if region.leaked]
    needed = "no region without an owner" + (", none of this engine_id" if needs.engine_ids else "")
    if blocking:
        region = blocking[0]
        owner = f"in use by process {listed(region.owners)}" if region.owners else "without a visible owner"
        return Check(
            name="leaked regions",
            status="fail",
            saw=f"{region.path} is there already, {owner}",
            needed=needed,
            remedy="give the server another engine_id"
            if region.owners
            else "`kvoffload doctor --fix-leaks` removes it",
        )
    if leaked:
        names = listed(f"{region.path.name} ({size(region.used_bytes)})" for region in leaked)
        return Check(
            name="leaked regions",
            status="warn",
            saw=f"{len(leaked)} without an owner: {names}",
            needed=needed,
            remedy="`kvoffload doctor --fix-leaks` removes them; not while another container shares this /dev/shm",
        )
    return Check(name="leaked regions", status="ok", saw=f"{len(regions)} regions, all with an owner", needed=needed)


def check_memlock(needs: Needs, paths: SystemPaths) -> Check:
    """Whether the tier may be pinned; without it transfers are slower, so a timing is not the tier's."""
    import resource

    if needs.platform == "cpu":
        return Check(name="memlock", status="skip", saw="a CPU engine pins no memory")
    if not needs.tier_bytes:
        return Check(name="memlock", status="skip", saw="no host tier to pin")
    needed = f"{size(needs.tier_bytes)} to pin the host tier"
    if _has_capability(paths.proc, _CAP_IPC_LOCK):
        return Check(name="memlock", status="ok", saw="CAP_IPC_LOCK: no limit", needed=needed)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Check(name="memlock", status="ok", saw="no limit", needed=needed)
    enough = soft >= needs.tier_bytes
    return Check(
        name="memlock",
        status="ok" if enough else "warn",
        saw=f"a limit of {size(soft)}",
        needed=needed,
        remedy="" if enough else "docker --ulimit memlock=-1, systemd LimitMEMLOCK=infinity, or `ulimit -l unlimited`",
    )


def _key_values(path: Path) -> dict[str, int]:
    """Read a kernel file of ``key value`` lines."""
    return {
        fields[0]: int(fields[1])
        for line in path.read_text().splitlines()
        if len(fields := line.split()) >= 2 and fields[1].isdigit()
    }


def _memory_cgroups(paths: SystemPaths) -> list[Path]:
    """Return this process's memory cgroup and its parents, or the mount itself where the path is the host's."""
    try:
        rows = (paths.proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for row in rows:
        _, _, rest = row.partition(":")
        controllers, _, name = rest.partition(":")
        if "memory" in controllers.split(","):
            mount = paths.cgroup / "memory"
        elif not controllers:
            mount = paths.cgroup if (paths.cgroup / "cgroup.controllers").exists() else paths.cgroup / "unified"
        else:
            continue
        own = mount / name.lstrip("/")
        # Inside a container the path may be the host's while the mount shows the container's own part only.
        start = own if own.is_dir() else mount
        folders += [folder for folder in (start, *start.parents) if folder == mount or mount in folder.parents]
    return folders


def _limits(folder: Path) -> tuple[int | None, int, int, Path]:
    """Return limit, usage and reclaimable bytes of one cgroup, and the file of the limit."""
    for limit_name, usage_name, reclaimable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        source = folder / limit_name
        try:
            raw = source.read_text().strip()
            if not raw.isdigit() or int(raw) >= _NO_LIMIT_BYTES:
                continue
            usage = int((folder / usage_name).read_text())
            return int(raw), usage, _key_values(folder / "memory.stat").get(reclaimable, 0), source
        except (OSError, ValueError):
            continue
    return None, 0, 0, folder


def _has_capability(proc: Path, number: int) -> bool:
    try:
        for line in (proc / "self" / "status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1) and os.geteuid() == 0
    except (OSError, ValueError, IndexError):
        pass
    return False
