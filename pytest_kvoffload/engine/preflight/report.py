"""What preflight hands on: checks, each with what was seen, what is needed and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["ok", "warn", "fail", "skip"]

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. ``fail`` means that a boot cannot succeed; ``skip`` that it could not be checked, and why."""

    name: str
    status: Status
    saw: str
    needed: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """All checks, in the order in which they were made."""

    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that make a boot pointless."""
        return tuple(check for check in self.checks if check.status == "fail")

    @property
    def ok(self) -> bool:
        """Whether nothing failed; warnings and skipped checks do not count."""
        return not self.failed

    def named(self, name: str) -> Check:
        """Return the check of that name; ``KeyError`` lists the names there are."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"no check {name!r}; there are: {', '.join(check.name for check in self.checks)}")


def size(count: int) -> str:
    """Render bytes with a binary unit: ``1.50 GiB``."""
    for unit, name in _UNITS:
        if abs(count) >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"


def listed(words: Iterable[object]) -> str:
    """Join words for a sentence."""
    return ", ".join(str(word) for word in words)
