"""Single values read from a delta, each either a number or the reason why there is none.

A metric that a server does not expose and a metric that did not move look alike in a sum. Here they do not: "declared,
no observation yet" is a zero only for metrics that appear with their first use, and everything else that is missing is
absent, with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_kvoffload.catalog.metrics import metric_fact, why_absent
from pytest_kvoffload.metrics import query
from pytest_kvoffload.metrics.quantiles import Histogram
from pytest_kvoffload.records import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A number, or ``None`` and the reason. ``metric`` is where it comes from (formulas name their parts)."""

    value: float | None
    metric: str
    unit: str
    reason: str = ""

    def per(self, other: Reading, *, unit: str) -> Reading:
        """Return the quotient; absent, with a reason, where a part is absent or the divisor is zero."""
        metric = f"{self.metric} / {other.metric}"
        for part in (self, other):
            if part.value is None:
                return Reading(value=None, metric=metric, unit=unit, reason=part.reason)
        if not other.value:
            return Reading(value=None, metric=metric, unit=unit, reason=f"{other.metric} did not move")
        return Reading(value=(self.value or 0.0) / other.value, metric=metric, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramReading:
    """What a histogram observed, or ``None`` and the reason. Without observations the histogram has count zero."""

    histogram: Histogram | None
    metric: str
    unit: str
    reason: str = ""

    @property
    def count(self) -> float:
        """Number of observations; zero when absent (look at ``histogram`` to tell the two apart)."""
        return self.histogram.count if self.histogram is not None else 0.0


def counter(delta: Delta, name: str, version: str | None, labels: Mapping[str, str] | None = None) -> Reading:
    """Read the increase of a counter, summed over engines and endpoints."""
    fact = metric_fact(name)
    unit = fact.unit if fact else ""
    shown = _shown(name, labels)
    value = query.total(delta, name, labels)
    if value is None and _is_silent_zero(delta, name):
        value = 0.0
    if value is None:
        return Reading(value=None, metric=shown, unit=unit, reason=_reason(delta, name, labels, version))
    return Reading(value=value, metric=shown, unit=unit)


def gauge(delta: Delta, name: str, version: str | None, labels: Mapping[str, str] | None = None) -> Reading:
    """Read a gauge at the end of the window: the sum over engines and endpoints, for a ratio their mean."""
    fact = metric_fact(name)
    unit = fact.unit if fact else ""
    value = query.level(delta, name, labels)
    if value is not None and unit == "ratio":
        value /= len(query.series(delta, name, labels))
    reason = "" if value is not None else _reason(delta, name, labels, version)
    return Reading(value=value, metric=_shown(name, labels), unit=unit, reason=reason)


def histogram(
    delta: Delta, name: str, version: str | None, labels: Mapping[str, str] | None = None
) -> HistogramReading:
    """Read what a histogram observed, summed over engines and endpoints."""
    fact = metric_fact(name)
    unit = fact.unit if fact else ""
    shown = _shown(name, labels)
    found = query.histogram(delta, name, labels)
    if found is None and _is_silent_zero(delta, name):
        found = Histogram(name=name, buckets=(), count=0.0, sum=0.0)
    reason = "" if found is not None else _reason(delta, name, labels, version)
    return HistogramReading(histogram=found, metric=shown, unit=unit, reason=reason)


def _is_silent_zero(delta: Delta, name: str) -> bool:
    """Whether "declared but without a series" means zero: true for what appears with its first use only."""
    fact = metric_fact(name)
    return fact is not None and fact.appears == "first_use" and query.declared(delta, name)


def _reason(delta: Delta, name: str, labels: Mapping[str, str] | None, version: str | None) -> str:
    if query.series(delta, name):
        return f"{name} has no series with {_braces(labels or {})}"
    if query.declared(delta, name):
        return f"{name} is declared by the server but has no series"
    return f"not exposed: {why_absent(name, version)}"


def _shown(name: str, labels: Mapping[str, str] | None) -> str:
    return name + (_braces(labels) if labels else "")


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
