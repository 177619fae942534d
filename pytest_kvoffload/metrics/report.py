"""A window's meters and verdict for people (sections of rows) and for programs (a versioned document)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_kvoffload.metrics.hit_rate import HitRate, MetricAbsent, hit_rate
from pytest_kvoffload.metrics.meters import SCHEDULER, Meters
from pytest_kvoffload.metrics.quantiles import minimum_count, quantile
from pytest_kvoffload.metrics.readings import HistogramReading, Reading
from pytest_kvoffload.metrics.verdict import Verdict

DOCUMENT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line: what, how much, and what has to be known about it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows under a title."""

    title: str
    rows: tuple[Row, ...]


def sections(meters: Meters) -> tuple[Section, ...]:
    """Return the three meters in their order (hit rate, TTFT, lookup tail), then the traffic, then the engines."""
    found = [
        Section(title="hit rate (of prompt tokens)", rows=_hit_rows(meters)),
        Section(title="TTFT (server side)", rows=_quantile_rows(meters.ttft, "", (0.5, 0.99))),
        Section(title="tier lookups", rows=_lookup_rows(meters)),
        Section(title="traffic", rows=_traffic_rows(meters)),
    ]
    if len(meters.engines) > 1:
        found.append(Section(title="engines", rows=_engine_rows(meters)))
    return tuple(found)


def document(meters: Meters, verdict: Verdict, urls: Sequence[str]) -> dict[str, Any]:
    """Return everything as JSON-ready values. Absent numbers are ``null`` beside their ``reason``."""
    tiers = {tier: _rate_document(hit_rate(meters, tier)) for tier in meters.hit_tokens}
    return {
        "schema_version": DOCUMENT_VERSION,
        "urls": list(urls),
        "seconds": meters.seconds,
        "vllm_version": meters.vllm_version,
        "connector": meters.connector,
        "verdict": asdict(verdict),
        "prompt_tokens": _reading_document(meters.prompt_tokens),
        "hit_rate": {"any": _rate_document(hit_rate(meters)), **tiers},
        "ttft": _histogram_document(meters.ttft),
        "lookup_sync": {tier: _histogram_document(reading) for tier, reading in meters.lookup_sync.items()},
        "lookup_async": {tier: _histogram_document(reading) for tier, reading in meters.lookup_async.items()},
        "traffic": {name: _reading_document(reading) for name, reading in _traffic(meters).items()},
        "tiers": {
            tier: {name: _reading_document(getattr(io, name)) for name in io.__dataclass_fields__}
            for tier, io in meters.tiers.items()
        },
        "engines": [
            {
                "endpoint": engine.endpoint,
                "engine": engine.engine,
                "prompt_tokens": _reading_document(engine.prompt_tokens),
                "device_hit_tokens": _reading_document(engine.device_hit_tokens),
                "external_hit_tokens": _reading_document(engine.external_hit_tokens),
            }
            for engine in meters.engines
        ],
        "caveats": list(meters.caveats),
    }


def _hit_rows(meters: Meters) -> tuple[Row, ...]:
    rows = []
    for tier in meters.hit_tokens:
        found = hit_rate(meters, tier)
        if isinstance(found, HitRate):
            if tier in {"p2p", "external_unspecified"} and found.hit_tokens == 0:
                continue
            value = f"{found.rate:.1%}"
            rows.append(Row(label=tier, value=value, note=f"{found.hit_tokens:g} of {found.prompt_tokens:g} tokens"))
        elif tier not in {"p2p", "external_unspecified"}:
            rows.append(Row(label=tier, value="-", note=found.reason))
    return tuple(rows)


def _quantile_rows(reading: HistogramReading, prefix: str, quantiles: Sequence[float]) -> tuple[Row, ...]:
    names = [f"{prefix}p{q * 100:g}" for q in quantiles]
    if reading.histogram is None:
        return (Row(label=names[0], value="-", note=reading.reason),)
    if reading.count == 0:
        return (Row(label=names[0], value="-", note="no observation in the window"),)
    rows = []
    for name, q in zip(names, quantiles, strict=True):
        found = quantile(reading.histogram, q)
        if found.capped:
            value, note = f"> {_seconds(found.lower)}", "beyond the last bucket"
        else:
            value = f"~ {_seconds(found.value)}"
            note = f"between {_seconds(found.lower)} and {_seconds(found.upper)}"
        note += f", n={found.count:g}"
        if found.count < minimum_count(q):
            note += f": too few, {minimum_count(q)} are needed"
        rows.append(Row(label=name, value=value, note=note))
    return tuple(rows)


def _lookup_rows(meters: Meters) -> tuple[Row, ...]:
    rows: list[Row] = []
    for how, readings in (("sync", meters.lookup_sync), ("async", meters.lookup_async)):
        for place, reading in readings.items():
            where = "" if place == SCHEDULER else f" {place}"
            if reading.histogram is None and how == "async":
                continue  # The sync row has said why already.
            rows += _quantile_rows(reading, f"{how}{where} ", (0.99,))
    return tuple(rows)


def _traffic(meters: Meters) -> dict[str, Reading]:
    return {
        "store_bytes": meters.store_bytes,
        "load_bytes": meters.load_bytes,
        "store_bandwidth": meters.store_bandwidth,
        "load_bandwidth": meters.load_bandwidth,
        "allocation_failures": meters.allocation_failures,
        "stores_skipped": meters.stores_skipped,
        "preemptions": meters.preemptions,
    }


def _traffic_rows(meters: Meters) -> tuple[Row, ...]:
    def moved(amount: Reading, bandwidth: Reading) -> Row:
        label = "stored" if amount is meters.store_bytes else "loaded"
        if amount.value is None:
            return Row(label=label, value="-", note=amount.reason)
        note = f"at {_bytes(bandwidth.value)}/s of transfer time" if bandwidth.value is not None else ""
        return Row(label=label, value=_bytes(amount.value), note=note)

    rows = [moved(meters.store_bytes, meters.store_bandwidth), moved(meters.load_bytes, meters.load_bandwidth)]
    for tier, io in meters.tiers.items():
        if io.read_bytes.value is not None and io.write_bytes.value is not None:
            value = f"{_bytes(io.write_bytes.value)} / {_bytes(io.read_bytes.value)}"
            rows.append(Row(label=f"{tier} written / read", value=value))
    for label, reading in (("stores refused", meters.allocation_failures), ("preemptions", meters.preemptions)):
        if reading.value is not None:
            rows.append(Row(label=label, value=f"{reading.value:g}"))
    return tuple(rows)


def _engine_rows(meters: Meters) -> tuple[Row, ...]:
    several = len({engine.endpoint for engine in meters.engines}) > 1
    rows = []
    for engine in meters.engines:
        prompt, hits = engine.prompt_tokens.value, engine.external_hit_tokens.value
        share = f"{hits / prompt:.1%} external" if prompt and hits is not None else "no prompts"
        label = f"{engine.endpoint} engine {engine.engine}" if several else f"engine {engine.engine}"
        rows.append(Row(label=label, value=share, note=f"{prompt or 0:g} prompt tokens"))
    return tuple(rows)


def _rate_document(found: HitRate | MetricAbsent) -> Mapping[str, Any]:
    if isinstance(found, MetricAbsent):
        return {"rate": None, "metric": found.metric, "since": found.since, "reason": found.reason}
    return {"rate": found.rate, "hit_tokens": found.hit_tokens, "prompt_tokens": found.prompt_tokens}


def _reading_document(reading: Reading) -> Mapping[str, Any]:
    base: dict[str, Any] = {"value": reading.value, "unit": reading.unit, "metric": reading.metric}
    return {**base, "reason": reading.reason} if reading.value is None else base


def _histogram_document(reading: HistogramReading) -> Mapping[str, Any]:
    if reading.histogram is None:
        return {"count": None, "metric": reading.metric, "reason": reading.reason}
    found: dict[str, Any] = {
        "count": reading.histogram.count,
        "sum_seconds": reading.histogram.sum,
        "metric": reading.metric,
    }
    for q in (0.5, 0.95, 0.99):
        read = quantile(reading.histogram, q)
        found[f"p{q * 100:g}"] = {
            "seconds": _finite(read.value),
            "lower_seconds": _finite(read.lower),
            "upper_seconds": _finite(read.upper),
            "enough_observations": read.count >= minimum_count(q),
        }
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _seconds(value: float) -> str:
    if value < 1e-3:
        return f"{value * 1e6:.3g} us"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def _bytes(value: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} B"
