"""What differs between versions of LMCache and matters to a launch: lookup of ``lmcache.toml``."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from importlib import resources

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True, slots=True, kw_only=True)
class LMCacheFact:
    """One flag or key in a range of versions."""

    name: str
    versions: str
    note: str
    source: str
    default: str | None = None
    since: str | None = None
    """The version that brought it, where older ones are still met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LMCacheCatalog:
    """The whole file."""

    fact: tuple[LMCacheFact, ...] = field(default_factory=tuple)

    def find(self, name: str, version: str) -> LMCacheFact | None:
        """The fact about a name that holds for a version of LMCache."""
        return next(
            (
                fact
                for fact in self.fact
                if fact.name == name and SpecifierSet(fact.versions).contains(version, prereleases=True)
            ),
            None,
        )

    def missing(self, name: str, version: str | None) -> LMCacheFact | None:
        """The fact that says since when there is such a name, if ``version`` is older; ``None`` when it has it."""
        if version is None or self.find(name, version) is not None:
            return None
        return next((fact for fact in self.fact if fact.name == name and fact.since is not None), None)


@functools.cache
def load_lmcache() -> LMCacheCatalog:
    """Read the catalog once; a mistake in the file is an error that names the key."""
    import msgspec

    raw = resources.files("pytest_kvoffload.catalog").joinpath("lmcache.toml").read_bytes()
    return msgspec.toml.decode(raw, type=LMCacheCatalog)
