"""What a rule is: a frozen description beside a function that yields diagnostics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_kvoffload.lint.model import Confidence, Diagnostic, Document, Edit, Launch, Location, Severity

if TYPE_CHECKING:
    from pytest_kvoffload.lint.facts import Context

CODE = re.compile(r"KVO\d{3}\Z")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of mistake. Codes are permanent; the name says the pattern found."""

    code: str
    name: str
    severity: Severity
    summary: str
    """One line for the table: what is wrong, no full stop."""
    remedy: str
    """What to write instead, when the finding itself has nothing better to say."""
    evidence: str
    """Where the fact was read or measured."""
    confidence: Confidence = "high"
    versions: str = "all"
    """vLLM (or LMCache) versions that it holds for."""
    pedantic: bool = False
    """Only with ``--pedantic``."""
    fixable: bool = False
    products: tuple[str, ...] = ("vllm",)
    """Launches that it is about; ``unknown`` are settings without a launch."""
    loose: bool = False
    """Whether it also reads settings that belong to no launch (``.env`` files, ConfigMaps, ``ENV`` lines)."""

    def __post_init__(self) -> None:
        if not CODE.match(self.code) or not NAME.match(self.name):
            raise ValueError(f"rule {self.code!r} {self.name!r}: KVO and three digits, and a kebab-case name")

    def at(
        self,
        location: Location,
        message: str,
        *,
        remedy: str | None = None,
        severity: Severity | None = None,
        confidence: Confidence | None = None,
        versions: str | None = None,
        fix: tuple[Edit, ...] = (),
    ) -> Diagnostic:
        """Return a diagnostic of this rule at a place; what is not given comes from the rule."""
        return Diagnostic(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            confidence=confidence or self.confidence,
            location=location,
            message=message,
            remedy=remedy or self.remedy,
            versions=self.versions if versions is None else versions,
            evidence=self.evidence,
            fix=fix,
        )


Check: TypeAlias = "Callable[[Document, Launch, Context], Iterable[Diagnostic]]"
DocumentCheck: TypeAlias = Callable[[Document], Iterable[Diagnostic]]
