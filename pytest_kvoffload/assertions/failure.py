"""The one exception of the assertions: what was violated, or why nothing can be said, and all evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal[
    "violated",
    "metric-absent",
    "tier-not-exercised",
    "too-few-samples",
    "phase-missing",
    "failed-requests",
    "incomplete",
]
"""``violated``: measured, and worse than asked. All others: the question has no answer in this measurement, which is
a failure too, but another one."""


class MeterAssertionError(AssertionError):
    """An assertion about a measurement does not hold, or cannot be judged.

    Args:
        assertion: name of the function.
        outcome: which kind of failure this is.
        message: one sentence with the numbers.
        evidence: label and value of everything that the sentence rests on.
        advice: what to do, one sentence each.
    """

    def __init__(
        self,
        *,
        assertion: str,
        outcome: Outcome,
        message: str,
        evidence: Mapping[str, str] | None = None,
        advice: tuple[str, ...] = (),
    ) -> None:
        self.assertion, self.outcome, self.message = assertion, outcome, message
        self.evidence, self.advice = dict(evidence or {}), advice
        lines = [f"{assertion}: {message}"]
        rows = {"outcome": outcome, **self.evidence}
        width = max(map(len, rows))
        lines += [f"  {label:<{width}}  {value}" for label, value in rows.items()]
        lines += [f"  what to do: {text}" for text in advice]
        super().__init__("\n".join(lines))
