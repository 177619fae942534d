"""The verdict on a candidate: pass, fail or inconclusive, each with its evidence. The gate fails closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pytest_kvoffload.errors import ExitCode
from pytest_kvoffload.gate.samples import DEFAULT_PHASE
from pytest_kvoffload.gate.spread import Spread
from pytest_kvoffload.stats import TailResult

VERDICT_SCHEMA_VERSION = 1
Outcome: TypeAlias = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was judged."""

    name: str
    outcome: Outcome
    text: str
    tail: TailResult | None = None
    value: float | None = None
    """What was measured on the candidate; ``None`` if nothing."""
    unit: str = ""
    """Of ``value``: ``seconds``, ``share`` or ``count``."""
    p_value: float | None = None
    """Of the test whose rejection is a failure, before the family is accounted for; ``None`` without a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The whole: fail if anything failed, else inconclusive if anything was, else pass."""

    reference: str
    candidate: str
    findings: tuple[Finding, ...]
    requests_per_arm: int
    boots_per_arm: int
    calibration: str
    notes: tuple[str, ...] = ()
    spread: Spread | None = None
    """How both arms' TTFTs are spread; ``None`` where they cannot be compared."""
    stopped_by: int | None = None
    """Exit code of the error that ended the run, such as 4 for a server that did not boot."""
    schema_version: int = field(default=VERDICT_SCHEMA_VERSION)

    @property
    def outcome(self) -> Outcome:
        """``fail``, ``inconclusive`` or ``pass``; nothing judged is inconclusive."""
        outcomes = {finding.outcome for finding in self.findings}
        if "fail" in outcomes:
            return "fail"
        return "pass" if outcomes == {"pass"} else "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        """0 for pass, 1 for fail, 3 for inconclusive; where an error ended the run, that of the error."""
        if self.stopped_by is not None:
            return ExitCode(self.stopped_by)
        return {"pass": ExitCode.OK, "fail": ExitCode.FAILED, "inconclusive": ExitCode.INCONCLUSIVE}[self.outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is asked of the tail. ``margin`` is relative: 0.10 lets the quantile grow by a tenth."""

    quantile: float = 0.99
    margin: float = 0.10
    alpha: float = 0.01
    confidence: float = 0.95
    phase: str = DEFAULT_PHASE
