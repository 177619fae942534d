"""What the tail test found, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pytest_kvoffload.stats.quantiles import smallest_n

TailDecision: TypeAlias = Literal["worse", "not_worse", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailResult:
    """What :func:`tail_regression` found. Ratios are candidate over reference: above 1 is slower."""

    decision: TailDecision
    """``worse``: by more than the margin, at level ``alpha``. ``not_worse``: the upper bound of the ratio lies below
    the margin. ``inconclusive``: neither can be said; ``explanation`` says why and how many requests would do."""
    p_value: float
    """One-sided, of "worse by no more than the margin"."""
    ratio: float
    """Estimated ratio of the tails around the quantile."""
    ratio_low: float
    """Lower bound of the two-sided interval; 0.0 when n cannot carry one."""
    ratio_high: float
    """Upper bound of the two-sided interval; infinite when n, or so few slow requests, cannot carry one."""
    n: int
    """Requests per arm (the smaller arm when unpaired)."""
    quantile: float
    margin: float
    alpha: float
    confidence: float
    """Of the interval."""
    reference_quantile: float
    """Sample quantile of the reference, seconds."""
    candidate_quantile: float
    """Sample quantile of the candidate, seconds."""
    tail_n: int
    """Values per arm that the ratio rests on."""
    tail_units: float
    """As how many independent values they count: fewer where slow requests come in bursts."""
    slow_sd: float
    """Standard deviation of the log ratio from drift, blocks and boots; in percent, for small values."""
    needed_n: int | None
    """When inconclusive: requests per arm that would be enough if the estimate stays, ``None`` when no number would."""
    method: str
    explanation: str


def explained(result: TailResult, *, assumed_boot: bool) -> TailResult:
    """Return the result with its explanation: what was seen, what follows from it, and what to do."""
    name = f"p{result.quantile * 100:g}"
    seen = (
        f"{name} {result.reference_quantile:.4g} s -> {result.candidate_quantile:.4g} s; tail ratio {result.ratio:.3f}"
        f" ({result.ratio_low:.3f} to {result.ratio_high:.3f} at {result.confidence:.0%}),"
        f" margin {result.margin:.0%}, n = {result.n}"
    )
    if result.decision == "worse":
        text = f"{seen}: slower by more than the margin (p = {result.p_value:.2g} <= {result.alpha:g})"
    elif result.decision == "not_worse":
        text = f"{seen}: the upper bound lies below the margin"
    elif result.n < smallest_n(result.quantile):
        text = f"{seen}: {result.n} requests per arm cannot carry a {name}; at least {result.needed_n} are needed"
    else:
        text = f"{seen}: neither worse (p = {result.p_value:.2g} > {result.alpha:g}) nor below the margin"
        if result.needed_n is not None:
            text += f"; about {result.needed_n} requests per arm would tell, if the ratio stays"
        else:
            text += "; more requests would not tell, the ratio is too close to the margin or boots and drift too large"
    if assumed_boot:
        text += "; an arm has one boot, whose own effect is assumed to be 3 %: several boots per arm would measure it"
    return replace(result, explanation=text)
