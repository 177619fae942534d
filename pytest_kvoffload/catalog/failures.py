"""The classes of failed boots, dead servers and degraded tiers: lookup of ``failures.toml``."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal, TypeAlias

FailureKind: TypeAlias = Literal["cause", "fallback", "warning", "degraded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMatch:
    """One spelling of a failure in a log; the fields are explained at the head of ``failures.toml``."""

    pattern: str
    cause: str
    versions: str
    source: str
    product: Literal["vllm", "lmcache"] = "vllm"
    within: str | None = None
    before: str | None = None
    recovery: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One class of failure."""

    cls: str
    remedy: str
    match: tuple[FailureMatch, ...]
    kind: FailureKind = "cause"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCatalog:
    """All classes, in the order in which they are tried on a line."""

    failure: tuple[Failure, ...] = field(default_factory=tuple)

    def by_class(self, cls: str) -> Failure:
        """Return the class of that name; ``KeyError`` lists the names there are."""
        for failure in self.failure:
            if failure.cls == cls:
                return failure
        raise KeyError(f"no failure class {cls!r}; there are: {', '.join(f.cls for f in self.failure)}")


@functools.cache
def load_failures() -> FailureCatalog:
    """Read the catalog once; a mistake in the file is an error that names the key."""
    import msgspec

    raw = resources.files("pytest_kvoffload.catalog").joinpath("failures.toml").read_bytes()
    return msgspec.toml.decode(raw, type=FailureCatalog)


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of the catalog, once."""
    return re.compile(pattern)
