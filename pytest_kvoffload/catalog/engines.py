"""The managed engines that are known: lookup of ``engines.toml``."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersion:
    """One release: the torch it wants, the Pythons it takes, and what of KV offload was seen working."""

    vllm: str
    torch: str
    python: str
    offload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineExtra:
    """What ``--with NAME`` installs on top."""

    name: str
    requirements: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """A fault of an installation that is mended by uninstalling packages."""

    name: str
    seen: tuple[str, ...]
    uninstall: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNote:
    """Something worth knowing that needs no mending."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCatalog:
    """The whole file."""

    default: str
    distribution: str
    disk_bytes: int
    version: tuple[EngineVersion, ...]
    extra: tuple[EngineExtra, ...] = field(default_factory=tuple)
    breakage: tuple[Breakage, ...] = field(default_factory=tuple)
    note: tuple[EngineNote, ...] = field(default_factory=tuple)

    def find(self, vllm: str) -> EngineVersion | None:
        """The release of that version, ``None`` when it is not in the catalog."""
        return next((version for version in self.version if version.vllm == vllm), None)

    def find_extra(self, name: str) -> EngineExtra | None:
        """The extra of that name, ``None`` when there is none."""
        return next((extra for extra in self.extra if extra.name == name), None)


@functools.cache
def load_engines() -> EngineCatalog:
    """Read the catalog once; a mistake in the file is an error that names the key."""
    import msgspec

    raw = resources.files("pytest_kvoffload.catalog").joinpath("engines.toml").read_bytes()
    return msgspec.toml.decode(raw, type=EngineCatalog)
