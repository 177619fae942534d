"""Two snapshots compared, in a way that cannot make a bad server look good.

Counters only ever rise while a process lives. Where one fell, or the process or the series was created anew in
between, what happened before the loss is unknown: the increment is then what the new series shows, a lower bound, and
the delta names the series or the endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pytest_kvoffload.records import Delta, DeltaSample, Sample, SampleKind, Snapshot

PROCESS_START = "process_start_time_seconds"
_CUMULATIVE: frozenset[SampleKind] = frozenset({"counter", "histogram", "summary"})


class _Key(NamedTuple):
    name: str
    labels: frozenset[tuple[str, str]]


_Index = dict[_Key, Sample]


def delta(before: Snapshot, after: Snapshot) -> Delta:
    """Compare two snapshots of the same endpoints.

    Counters, and the buckets, counts and sums of histograms and summaries, get their increase; gauges and untyped
    series the plain difference (the level itself is in ``after``). A series that appeared in between started at zero.
    Left out: ``_created`` series (they only serve to detect resets), a summary's own quantiles (no difference of two
    quantiles means anything), and values that are not finite.

    Args:
        before: the earlier snapshot.
        after: the later snapshot, of the same URLs.

    Returns:
        The delta. For snapshots without a reset, increments are additive:
        ``delta(a, b) + delta(b, c) == delta(a, c)``. With resets they are a lower bound, and ``resets`` or
        ``restarts`` is not empty.

    Raises:
        ValueError: the snapshots are of different endpoints, or in the wrong order.
    """
    if set(before.urls) != set(after.urls):
        raise ValueError(
            f"snapshots of different endpoints cannot be compared: {', '.join(before.urls)} before, "
            f"{', '.join(after.urls)} after"
        )
    seconds = after.taken_at_seconds - before.taken_at_seconds
    if seconds < 0:
        raise ValueError(f"the second snapshot is {-seconds:g} s older than the first")
    old, old_created = _index(before)
    new, new_created = _index(after)
    restarted = _restarted(old, new)
    reset = _reset_groups(old, new) | _recreated(old_created, new_created)
    return Delta(
        seconds=seconds,
        samples=tuple(_compare(old, new, restarted, reset)),
        families={**before.families, **after.families},
        resets=_render_groups(key for key in reset if dict(key.labels).get("endpoint", "") not in restarted),
        restarts=tuple(sorted(restarted)),
        vanished=_render_groups(
            _group(key, sample.kind) for key, sample in old.items() if key not in new and sample.kind != "unknown"
        ),
    )


def render_series(name: str, labels: Mapping[str, str]) -> str:
    """Return ``name{label="value",...}`` with sorted labels."""
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name


def _compare(old: _Index, new: _Index, restarted: set[str], reset: set[_Key]) -> Iterable[DeltaSample]:
    for key, sample in new.items():
        earlier = old.get(key)
        before = earlier.value if earlier is not None and math.isfinite(earlier.value) else None
        if not math.isfinite(sample.value):
            continue
        lost = sample.kind in _CUMULATIVE and (
            sample.labels.get("endpoint", "") in restarted or _group(key, sample.kind) in reset
        )
        base = 0.0 if before is None or lost else before
        yield DeltaSample(
            name=sample.name,
            labels=sample.labels,
            kind=sample.kind,
            before=before,
            after=sample.value,
            increment=sample.value - base,
        )


def _index(snapshot: Snapshot) -> tuple[_Index, dict[_Key, float]]:
    """Split a snapshot into the series to compare and the creation times, the latter keyed by group."""
    by_key = {_Key(s.name, frozenset(s.labels.items())): s for s in snapshot.samples}
    groups = {_group(key, sample.kind) for key, sample in by_key.items() if sample.kind in _CUMULATIVE}
    series: _Index = {}
    created: dict[_Key, float] = {}
    for key, sample in by_key.items():
        base = _Key(key.name.removesuffix("_created"), key.labels)
        if key.name.endswith("_created") and base in groups:
            created[base] = sample.value
        elif sample.kind == "summary" and "quantile" in sample.labels:
            continue
        else:
            series[key] = sample
    return series, created


def _group(key: _Key, kind: SampleKind) -> _Key:
    """Return what is reset together: a counter, or a whole histogram or summary, without ``le`` and suffixes."""
    name = key.name
    if kind == "counter":
        return _Key(name.removesuffix("_total"), key.labels)
    if kind in {"histogram", "summary"}:
        for suffix in ("_bucket", "_count", "_sum"):
            if name.endswith(suffix):
                name = name.removesuffix(suffix)
                break
        return _Key(name, frozenset(pair for pair in key.labels if pair[0] != "le"))
    return key


def _restarted(old: _Index, new: _Index) -> set[str]:
    """Return the endpoints whose process is another one: its start time changed (constant within a process)."""
    starts = {key: sample.value for key, sample in old.items() if key.name == PROCESS_START}
    return {
        sample.labels.get("endpoint", "")
        for key, sample in new.items()
        if key in starts and starts[key] != sample.value
    }


def _reset_groups(old: _Index, new: _Index) -> set[_Key]:
    found = set()
    for key, sample in new.items():
        earlier = old.get(key)
        if earlier is None or sample.kind not in _CUMULATIVE or sample.value >= earlier.value:
            continue
        # The sum of a histogram falls without a reset when negative values are observed.
        if sample.kind == "counter" or not sample.name.endswith("_sum"):
            found.add(_group(key, sample.kind))
    return found


def _recreated(old: Mapping[_Key, float], new: Mapping[_Key, float]) -> set[_Key]:
    return {key for key, value in new.items() if key in old and old[key] != value}


def _render_groups(keys: Iterable[_Key]) -> tuple[str, ...]:
    return tuple(sorted({render_series(key.name, dict(key.labels)) for key in keys}))
