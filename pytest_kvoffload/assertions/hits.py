"""Assertions on what was hit, stored and loaded."""

from __future__ import annotations

from pytest_kvoffload.assertions.diagnosis import why_no_hits
from pytest_kvoffload.assertions.evidence import Case, number, open_case, rounding
from pytest_kvoffload.assertions.fleet import replica_rows
from pytest_kvoffload.metrics.hit_rate import MetricAbsent, hit_rate
from pytest_kvoffload.metrics.replicas import EACH, replicas
from pytest_kvoffload.records import Measurement

__tracebackhide__ = True  # pytest shows the line of the test, not ours


def assert_hit_rate_above(
    measurement: Measurement,
    threshold: float,
    *,
    tier: str | None = None,
    phase: str = "restored",
    replica: str | None = None,
) -> None:
    """Assert that more than ``threshold`` of the prompt tokens of a phase came from a cache.

    Args:
        measurement: what was measured.
        threshold: in [0, 1); the rate must exceed it.
        tier: ``device``, ``external`` (everything through the connector), ``host``, ``disk`` and so on where vLLM tells
            them apart (0.32 and later); ``None`` is device and external together.
        phase: ``restored`` by default.
        replica: one replica of several, over the prompts that it served; ``each`` asks it of every one, also of one
            that served nothing. ``None`` is all of them together.

    Raises:
        MeterAssertionError: ``violated``, ``metric-absent``, or what :func:`open_case` refuses.
        UsageError: a tier or a replica that does not exist.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"a hit rate lies in [0, 1]: a threshold of {threshold} cannot be exceeded")
    if replica == EACH:
        for one in replicas(open_case("assert_hit_rate_above", measurement, phase).phase.delta):
            assert_hit_rate_above(measurement, threshold, tier=tier, phase=phase, replica=one.name)
        return
    case = open_case("assert_hit_rate_above", measurement, phase, replica=replica)
    meters = case.meters
    found = hit_rate(meters, tier)
    label = "any tier" if tier is None else f"tier {tier}"
    if isinstance(found, MetricAbsent):
        case.fail("metric-absent", str(found), {"metric": found.metric, "threshold": f"> {threshold:g}"})
    if found.rate > threshold:
        return
    case.fail(
        "violated",
        f"the hit rate of {label} in phase {phase!r} of {measurement.arm!r}"
        f"{f' on replica {replica}' if replica else ''} is {found.rate:.3f}, asked for is more than {threshold:g}",
        {
            **replica_rows(measurement, case.phase, tier),
            "numerator": f"{number(found.hit_tokens)} tokens, {found.numerator}",
            "denominator": f"{number(found.prompt_tokens)} tokens, {found.denominator}",
            "threshold": f"> {threshold:g}",
            "rounding": rounding(measurement, found.note),
        },
        advice=why_no_hits(measurement, case.phase),
    )


def assert_tier_exercised(measurement: Measurement, *, phase: str = "restored", replica: str | None = None) -> None:
    """Assert that a tier was written and that a phase was served from it at all.

    Args:
        measurement: what was measured.
        phase: ``restored`` by default.
        replica: one replica of several; ``each`` asks it of every one, ``None`` of any.

    Raises:
        MeterAssertionError: ``tier-not-exercised`` when no token came through the connector, ``metric-absent`` when the
            server does not tell.
    """
    if replica == EACH:
        for one in replicas(open_case("assert_tier_exercised", measurement, phase).phase.delta):
            assert_tier_exercised(measurement, phase=phase, replica=one.name)
        return
    case = open_case("assert_tier_exercised", measurement, phase, replica=replica)
    external = case.value(case.meters.hit_tokens["external"])
    if external > 0:
        return
    case.fail(
        "tier-not-exercised",
        f"the tier was never reached in phase {phase!r} of {measurement.arm!r}"
        f"{f' on replica {replica}' if replica else ''}: 0 of "
        f"{number(case.meters.prompt_tokens.value or 0)} prompt tokens came through a connector",
        {
            **replica_rows(measurement, case.phase, "external"),
            "stored": _stored(measurement),
            "device hits": f"{number(case.meters.hit_tokens['device'].value or 0)} tokens",
        },
        advice=why_no_hits(measurement, case.phase),
    )


def assert_no_stores_without_loads(measurement: Measurement, *, phase: str = "restored") -> None:
    """Assert that a tier that was written was also read: not one that only costs.

    Stores are summed over all phases, loads are looked for in ``phase`` and after.

    Raises:
        MeterAssertionError: ``violated`` when bytes were stored and none loaded, ``tier-not-exercised`` when
            nothing was stored either, ``metric-absent`` when the connector has no byte counters.
    """
    case = open_case("assert_no_stores_without_loads", measurement, phase)
    stored = loaded = 0.0
    for one in measurement.phases:
        meters = Case(assertion=case.assertion, measurement=measurement, phase=one).meters
        stored += case.value(meters.store_bytes)
        loaded += case.value(meters.load_bytes)
    if stored > 0 and loaded > 0:
        return
    if stored == 0:
        case.fail(
            "tier-not-exercised",
            "nothing was stored in any phase, so the tier could not be read",
            {"stored": "0 bytes", "loaded": f"{number(loaded)} bytes"},
            advice=why_no_hits(measurement, case.phase),
        )
    case.fail(
        "violated",
        f"{number(stored)} bytes were stored and none was ever loaded: the tier costs and gives nothing",
        {"stored": f"{number(stored)} bytes, all phases", "loaded": "0 bytes, all phases"},
        advice=why_no_hits(measurement, case.phase),
    )


def assert_no_allocation_failures(measurement: Measurement, *, phase: str | None = None) -> None:
    """Assert that the tier never refused a store for want of room (``vllm:kv_offload_allocation_failure_total``).

    Args:
        measurement: what was measured.
        phase: one phase, or ``None`` for all of them.
    """
    names = (phase,) if phase is not None else measurement.phase_names or ("cold",)
    cases = [open_case("assert_no_allocation_failures", measurement, name) for name in names]
    failures = sum(case.value(case.meters.allocation_failures) for case in cases)
    if failures == 0:
        return
    cases[-1].fail(
        "violated",
        f"the tier refused {number(failures)} stores because it had no room",
        {"counter": "vllm:kv_offload_allocation_failure_total", "over": ", ".join(names)},
        advice=(
            "a store is all or nothing: the tier must hold all chunks that one request stores in one step; raise "
            "cpu_bytes_to_use (bytes, not GB) or lower max_num_batched_tokens",
        ),
    )


def assert_preemptions_below(measurement: Measurement, limit: float, *, phase: str = "restored") -> None:
    """Assert that fewer than ``limit`` requests were preempted in a phase."""
    case = open_case("assert_preemptions_below", measurement, phase)
    preemptions = case.value(case.meters.preemptions)
    if preemptions < limit:
        return
    case.fail(
        "violated",
        f"{number(preemptions)} preemptions in phase {phase!r}, asked for are fewer than {limit:g}",
        {"counter": "vllm:num_preemptions_total", "threshold": f"< {limit:g}"},
        advice=("the device cache does not hold the running requests: fewer at once, or more blocks",),
    )


def assert_no_failed_requests(measurement: Measurement, *, at_most: int = 0) -> None:
    """Assert that no request failed, over all phases; ``at_most`` allows for some."""
    if not measurement.complete:
        open_case("assert_no_failed_requests", measurement, "cold")
    failed = [sample for phase in measurement.phases for sample in phase.samples if not sample.ok]
    total = sum(len(phase.samples) for phase in measurement.phases)
    first = measurement.phase_names[0] if measurement.phase_names else "cold"
    if total == 0:
        open_case("assert_no_failed_requests", measurement, first)
    if len(failed) <= at_most:
        return
    case = open_case("assert_no_failed_requests", measurement, failed[0].phase, allow_failed=True)
    kinds = sorted({sample.error or "no token came" for sample in failed})
    case.fail(
        "violated",
        f"{len(failed)} of {total} requests failed, at most {at_most} may",
        {
            "requests": ", ".join(f"{sample.phase}/{sample.index}" for sample in failed[:10])
            + (" ..." if len(failed) > 10 else ""),
            **{f"error {number}": text for number, text in enumerate(kinds[:3], 1)},
        },
    )


def _stored(measurement: Measurement) -> str:
    texts = []
    for phase in measurement.phases:
        reading = Case(assertion="", measurement=measurement, phase=phase).meters.store_bytes
        texts.append(
            f"{phase.name} " + (f"{number(reading.value)} bytes" if reading.value is not None else reading.reason)
        )
    return "; ".join(texts)
