"""Assertions on lookups and transfers, from the server's histograms and counters."""

from __future__ import annotations

from typing import Literal

from pytest_kvoffload.assertions.evidence import number, open_case, quantile_name
from pytest_kvoffload.errors import UsageError, did_you_mean
from pytest_kvoffload.metrics.meters import SCHEDULER
from pytest_kvoffload.metrics.quantiles import claim_below, minimum_count
from pytest_kvoffload.metrics.quantiles import quantile as histogram_quantile
from pytest_kvoffload.records import Measurement

__tracebackhide__ = True  # pytest shows the line of the test, not ours


def assert_lookup_delay_bounded(
    measurement: Measurement,
    bound_seconds: float,
    *,
    q: float | None = None,
    kind: Literal["sync", "async"] = "sync",
    tier: str = SCHEDULER,
    phase: str = "restored",
) -> None:
    """Assert that looking a prompt up in the tiers does not take longer than a bound.

    Args:
        measurement: what was measured.
        bound_seconds: the bound.
        q: a quantile such as 0.99, claimed only where the buckets can carry it; ``None`` judges the mean, which a
            histogram knows exactly.
        kind: ``sync`` delays hold the scheduler up, ``async`` ones only the request.
        tier: ``scheduler`` is what the connector as a whole measures; ``0:primary``, ``1:fs`` and so on are tiers.
        phase: ``restored`` by default.

    Raises:
        MeterAssertionError: ``violated``, ``metric-absent``, ``tier-not-exercised`` without a lookup, or
            ``too-few-samples`` when count or buckets cannot decide.
    """
    case = open_case("assert_lookup_delay_bounded", measurement, phase)
    delays = case.meters.lookup_sync if kind == "sync" else case.meters.lookup_async
    if tier not in delays:
        known = ", ".join(delays)
        if tier.split(":")[0].isdigit() or tier == "all tiers":
            case.fail(
                "metric-absent",
                f"no {kind} lookup delay of tier {tier!r} in phase {phase!r}; there are: {known}"
                f"{did_you_mean(tier, delays)}",
                {"metric": f"vllm:kv_offload_tiering_lookup_{kind}_delay_seconds"},
            )
        raise UsageError(f"unknown tier {tier!r}{did_you_mean(tier, delays)}; there are {known}")
    reading = delays[tier]
    rows = {"metric": reading.metric, "threshold": f"<= {bound_seconds:g} s", "tier": tier}
    if reading.histogram is None:
        case.fail("metric-absent", f"{reading.metric} cannot be read: {reading.reason}", rows)
    histogram = reading.histogram
    if not histogram.count > 0 or histogram.mean is None:
        case.fail("tier-not-exercised", f"no {kind} lookup was timed in phase {phase!r}", rows)
    rows["observations"] = f"{histogram.count:g}, mean {histogram.mean:.6f} s"
    if q is None:
        if histogram.mean <= bound_seconds:
            return
        case.fail(
            "violated",
            f"the mean {kind} lookup delay of tier {tier} is {histogram.mean:.6f} s, allowed is {bound_seconds:g} s",
            rows,
        )
    claim = claim_below(histogram, q, bound_seconds)
    if claim.verdict == "holds":
        return
    found = histogram_quantile(histogram, q)
    rows[quantile_name(q)] = f"between {found.lower:g} and {found.upper:g} s ({minimum_count(q)} observations needed)"
    if claim.verdict == "fails":
        case.fail("violated", f"{kind} lookups of tier {tier} are too slow: {claim.reason}", rows)
    case.fail("too-few-samples", f"whether {kind} lookups of tier {tier} are fast enough is open: {claim.reason}", rows)


def assert_load_bandwidth_above(measurement: Measurement, bytes_per_second: float, *, phase: str = "restored") -> None:
    """Assert that loads reach a bandwidth: bytes loaded over the time that transfers took (they may overlap).

    Raises:
        MeterAssertionError: ``violated``; ``tier-not-exercised`` when nothing was loaded; ``metric-absent``.
    """
    case = open_case("assert_load_bandwidth_above", measurement, phase)
    meters = case.meters
    loaded, seconds = case.value(meters.load_bytes), case.value(meters.load_seconds)
    rows = {
        "numerator": f"{number(loaded)} bytes, {meters.load_bytes.metric}",
        "denominator": f"{seconds:g} s, {meters.load_seconds.metric}",
        "threshold": f"> {number(bytes_per_second)} bytes/s",
    }
    if loaded == 0 or seconds == 0:
        case.fail("tier-not-exercised", f"nothing was loaded in phase {phase!r}, so there is no bandwidth", rows)
    speed = loaded / seconds
    if speed > bytes_per_second:
        return
    case.fail(
        "violated",
        f"loads run at {number(speed)} bytes/s ({speed / 1e9:.3g} GB/s), asked for is more than "
        f"{number(bytes_per_second)}",
        rows,
        advice=("larger chunks make larger transfers; check pinning, NUMA placement and what else uses the link",),
    )
