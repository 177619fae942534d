"""Questions to a delta: sums over engines and endpoints, with "absent" kept apart from zero.

Names are sample names. A counter may be named with or without ``_total``; parts of a histogram are named in full
(``..._count``, ``..._sum``), or the histogram is asked for as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pytest_kvoffload.metrics.quantiles import Histogram
from pytest_kvoffload.records import Delta, DeltaSample


def declared(delta: Delta, name: str) -> bool:
    """Say whether the server knows the metric, be it that no series of it exists yet (before its first use)."""
    bare = name.removesuffix("_total")
    if name in delta.families or delta.families.get(f"{name}_total") == "counter":
        return True
    if name.endswith("_total") and delta.families.get(bare, "histogram") in {"counter", "unknown"}:
        return True
    return bool(series(delta, name))


def series(delta: Delta, name: str, labels: Mapping[str, str] | None = None) -> tuple[DeltaSample, ...]:
    """Return the series of that name whose labels contain ``labels``; empty when there is none."""
    found = tuple(s for s in delta.samples if s.name == name and _matches(s, labels))
    if found:
        return found
    other = name.removesuffix("_total") if name.endswith("_total") else f"{name}_total"
    return tuple(s for s in delta.samples if s.name == other and s.kind == "counter" and _matches(s, labels))


def total(delta: Delta, name: str, labels: Mapping[str, str] | None = None) -> float | None:
    """Sum the increments over engines, endpoints and every label not named; ``None`` when no series matches."""
    found = series(delta, name, labels)
    return math.fsum(s.increment for s in found) if found else None


def level(delta: Delta, name: str, labels: Mapping[str, str] | None = None) -> float | None:
    """Sum the values at the second snapshot (what a gauge shows); ``None`` when no series matches."""
    found = series(delta, name, labels)
    return math.fsum(s.after for s in found) if found else None


def by_label(delta: Delta, name: str, label: str, labels: Mapping[str, str] | None = None) -> dict[str, float]:
    """Sum the increments for each value of a label; series without it count under the empty string."""
    parts: dict[str, list[float]] = {}
    for sample in series(delta, name, labels):
        parts.setdefault(sample.labels.get(label, ""), []).append(sample.increment)
    return {value: math.fsum(increments) for value, increments in sorted(parts.items())}


def label_values(delta: Delta, name: str, label: str) -> tuple[str, ...]:
    """Return the values that a label has among the series of that name, sorted."""
    return tuple(sorted({s.labels[label] for s in series(delta, name) if label in s.labels}))


def histogram(delta: Delta, name: str, labels: Mapping[str, str] | None = None) -> Histogram | None:
    """Return what a histogram observed between the snapshots, summed over engines and endpoints by bucket.

    Where engines have different buckets only the bounds that all share are kept: there the cumulative counts add up
    exactly, in between nothing is known.

    Returns:
        The histogram, with zero observations when the series exist and did not move; ``None`` when there are none.
    """
    parts: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
    for sample in series(delta, f"{name}_bucket", labels):
        if sample.kind != "histogram":
            continue
        try:
            bound = float(sample.labels["le"])
        except (KeyError, ValueError):
            continue
        key = frozenset(pair for pair in sample.labels.items() if pair[0] != "le")
        buckets = parts.setdefault(key, {})
        buckets[bound] = buckets.get(bound, 0.0) + sample.increment
    if not parts:
        return None
    shared = set.intersection(*(set(buckets) for buckets in parts.values()))
    return Histogram(
        name=name,
        buckets=tuple((bound, math.fsum(b[bound] for b in parts.values())) for bound in sorted(shared)),
        count=total(delta, f"{name}_count", labels) or 0.0,
        sum=total(delta, f"{name}_sum", labels) or 0.0,
    )


def _matches(sample: DeltaSample, labels: Mapping[str, str] | None) -> bool:
    return not labels or all(sample.labels.get(key) == value for key, value in labels.items())
