"""What a server takes of the host's memory, and where: lookup of ``host_memory.toml``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Literal, TypeAlias

Spec: TypeAlias = Literal["host", "tiering"]
Platform: TypeAlias = Literal["cuda", "rocm", "xpu", "cpu"]
Where: TypeAlias = Literal["shm", "private", "pinned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """Where a tier's bytes live, for the versions and platforms that it names."""

    spec: Spec
    platforms: tuple[Platform, ...]
    versions: str
    where: Where
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Free space of /dev/shm, in bytes, that the largest queue of the multi-process executor asks for."""

    free_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Resident bytes of the server's processes without any KV: a base and a share for each worker."""

    base_bytes: int
    worker_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The whole table."""

    backing: tuple[Backing, ...]
    queue: Queue
    processes: Processes


@functools.cache
def load_host_memory() -> HostMemory:
    """Read the table once."""
    import msgspec

    raw = resources.files("pytest_kvoffload.catalog").joinpath("host_memory.toml").read_bytes()
    return msgspec.toml.decode(raw, type=HostMemory)


def backing_of(spec: Spec, *, platform: Platform, version: str | None) -> Backing:
    """Return where the bytes of a tier live.

    Args:
        spec: ``host`` (CPUOffloadingSpec) or ``tiering`` (TieringOffloadingSpec).
        platform: of the engine.
        version: of vLLM; ``None`` means the newest that the table knows.

    Raises:
        ValueError: no entry fits (a version older than the table).
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    release = Version(Version(version).base_version) if version else Version("9999")
    for entry in load_host_memory().backing:
        if entry.spec == spec and platform in entry.platforms and release in SpecifierSet(entry.versions):
            return entry
    raise ValueError(f"no fact about the memory of a {spec} tier on {platform} in vLLM {version}")
