"""Assertions on time to first token, as the client saw it."""

from __future__ import annotations

from pytest_kvoffload.assertions.diagnosis import why_long_tail, why_not_faster
from pytest_kvoffload.assertions.evidence import Case, need_samples, number, open_case, pairs, quantile_name
from pytest_kvoffload.records import Measurement
from pytest_kvoffload.stats import quantile, quantile_interval, smallest_n

__tracebackhide__ = True  # pytest shows the line of the test, not ours

MINIMUM_PAIRS = 5
"""Fewest equal requests from which a direction is concluded: all five agreeing has probability 1/32 by chance."""


def assert_ttft_p50_below(
    measurement: Measurement,
    bound_seconds: float | None = None,
    *,
    relative_to: Measurement | None = None,
    factor: float = 1.0,
    slack_seconds: float = 0.0,
    confidence: float | None = None,
    phase: str = "restored",
    relative_phase: str | None = None,
) -> None:
    """Assert that the median time to first token is at most a bound.

    The bound is ``bound_seconds``, or ``factor`` times the same quantile of ``relative_to`` plus ``slack_seconds``. A
    timing means most against another one of the same machine and run, so prefer ``relative_to``.

    Args:
        measurement: what was measured.
        bound_seconds: absolute bound.
        relative_to: another measurement (the control), or the same one with another ``relative_phase``.
        factor: below 1 asks for a gain, above 1 allows a loss.
        slack_seconds: absolute allowance on top of the factor: what does not matter however it compares.
        confidence: ask that the bound holds with this one-sided confidence (needs the extra ``gate``), rather than for
            the sample quantile.
        phase: phase of ``measurement``.
        relative_phase: phase of ``relative_to``; the same by default.

    Raises:
        MeterAssertionError: ``violated``, ``too-few-samples``, ``phase-missing``, ``failed-requests``, ``incomplete``.
    """
    _bounded(
        "assert_ttft_p50_below",
        0.5,
        measurement,
        bound_seconds,
        relative_to,
        factor,
        slack_seconds,
        confidence,
        phase,
        relative_phase,
    )


def assert_ttft_p95_bounded(
    measurement: Measurement,
    bound_seconds: float | None = None,
    *,
    relative_to: Measurement | None = None,
    factor: float = 1.0,
    slack_seconds: float = 0.0,
    confidence: float | None = None,
    phase: str = "restored",
    relative_phase: str | None = None,
) -> None:
    """Assert that the p95 of time to first token is at most a bound; needs 20 samples. See assert_ttft_p50_below."""
    _bounded(
        "assert_ttft_p95_bounded",
        0.95,
        measurement,
        bound_seconds,
        relative_to,
        factor,
        slack_seconds,
        confidence,
        phase,
        relative_phase,
    )


def assert_ttft_p99_bounded(
    measurement: Measurement,
    bound_seconds: float | None = None,
    *,
    relative_to: Measurement | None = None,
    factor: float = 1.0,
    slack_seconds: float = 0.0,
    confidence: float | None = None,
    phase: str = "restored",
    relative_phase: str | None = None,
) -> None:
    """Assert that the p99 of time to first token is at most a bound; needs 100 samples. See assert_ttft_p50_below."""
    _bounded(
        "assert_ttft_p99_bounded",
        0.99,
        measurement,
        bound_seconds,
        relative_to,
        factor,
        slack_seconds,
        confidence,
        phase,
        relative_phase,
    )


def assert_ttft_max_bounded(
    measurement: Measurement,
    bound_seconds: float | None = None,
    *,
    relative_to: Measurement | None = None,
    factor: float = 1.0,
    slack_seconds: float = 0.0,
    phase: str = "restored",
    relative_phase: str | None = None,
) -> None:
    """Assert that the slowest request stays below a bound: what few samples can carry where a p99 is refused.

    It claims nothing about requests that were not sent. Arguments as in :func:`assert_ttft_p50_below`.
    """
    _bounded(
        "assert_ttft_max_bounded",
        1.0,
        measurement,
        bound_seconds,
        relative_to,
        factor,
        slack_seconds,
        None,
        phase,
        relative_phase,
    )


def assert_restored_faster_than_cold(
    measurement: Measurement, factor: float = 1.0, *, phase: str = "restored", cold_phase: str = "cold"
) -> None:
    """Assert that equal requests are at least ``factor`` times faster restored than cold.

    Judged by the median over equal requests of cold over restored time: each request is compared with itself, so few
    requests suffice and one outlier does not decide.

    Raises:
        MeterAssertionError: ``violated``; ``too-few-samples`` below five equal requests.
    """
    case = open_case("assert_restored_faster_than_cold", measurement, phase)
    cold = open_case("assert_restored_faster_than_cold", measurement, cold_phase)
    ratios = speedups(case, cold)
    middle = quantile(ratios, 0.5)
    if middle > factor or (factor > 1 and middle >= factor):
        return
    case.fail(
        "violated",
        f"restored requests are {middle:.2f} times as fast as the same requests cold, asked for is {factor:g}",
        {
            "cold p50": f"{quantile(cold.times, 0.5):.4f} s",
            f"{phase} p50": f"{quantile(case.times, 0.5):.4f} s",
            "pairs": f"{len(ratios)} equal requests, {sum(r > 1 for r in ratios)} of them faster",
            "threshold": f"median of cold/restored {'>' if factor <= 1 else '>='} {factor:g}",
        },
        advice=why_not_faster(measurement, case.phase),
    )


def assert_store_cost_bounded(
    measurement: Measurement,
    control: Measurement,
    factor: float = 1.2,
    *,
    slack_seconds: float = 0.0,
    phase: str = "cold",
) -> None:
    """Assert that storing does not slow the cold pass down by more than ``factor`` against the control.

    Judged by the median over equal requests of measured over control time; ``slack_seconds`` of the control's median
    are allowed on top.

    Raises:
        MeterAssertionError: ``violated``; ``tier-not-exercised`` when nothing was stored, so that no cost was measured.
    """
    case = open_case("assert_store_cost_bounded", measurement, phase)
    other = open_case("assert_store_cost_bounded", control, phase)
    stored = case.value(case.meters.store_bytes)
    if stored == 0:
        case.fail("tier-not-exercised", f"nothing was stored in phase {phase!r}, so storing was not measured")
    ratios = [1 / ratio for ratio in speedups(case, other)]
    middle, control_p50 = quantile(ratios, 0.5), quantile(other.times, 0.5)
    limit = factor + slack_seconds / control_p50
    if middle <= limit:
        return
    case.fail(
        "violated",
        f"the cold pass takes {middle:.2f} times what the control takes for the same requests, allowed is {limit:.2f}",
        {
            "cold p50": f"{quantile(case.times, 0.5):.4f} s",
            "control p50": f"{control_p50:.4f} s (arm {control.arm})",
            "stored": f"{number(stored)} bytes",
            "pairs": f"{len(ratios)} equal requests",
            "threshold": f"<= {factor:g}" + (f" and {slack_seconds:g} s" if slack_seconds else ""),
        },
        advice=(
            "stores compete with the prefill for memory bandwidth: larger chunks, a store_threshold, or fewer requests "
            "at once",
        ),
    )


def assert_client_and_server_agree_on_ttft(
    measurement: Measurement,
    *,
    tolerance_seconds: float = 0.05,
    tolerance_share: float = 0.1,
    phase: str = "restored",
) -> None:
    """Assert that the mean TTFT of the client and of ``vllm:time_to_first_token_seconds`` agree.

    They may differ by ``tolerance_seconds`` plus ``tolerance_share`` of the server's mean. A larger gap means that time
    is lost outside the engine (HTTP, queues before it, a proxy) or that one of the clocks measures something else.

    Raises:
        MeterAssertionError: ``violated``; also when the server counted another number of requests than were sent.
    """
    case = open_case("assert_client_and_server_agree_on_ttft", measurement, phase)
    reading = case.meters.ttft
    if reading.histogram is None or reading.histogram.mean is None:
        case.fail("metric-absent", f"{reading.metric} cannot be read: {reading.reason or 'no observation'}")
    server = reading.histogram.mean
    client = sum(case.times) / len(case.times)
    rows = {
        "client mean": f"{client:.4f} s over {len(case.times)} requests",
        "server mean": f"{server:.4f} s over {reading.count:g} observations of {reading.metric}",
        "threshold": f"{tolerance_seconds:g} s + {tolerance_share:.0%} of the server's mean",
    }
    if reading.count != len(case.times):
        case.fail(
            "violated",
            f"the server timed {reading.count:g} requests in phase {phase!r}, the client {len(case.times)}: there was "
            "other traffic, so the two means are not of the same requests",
            rows,
        )
    if abs(client - server) <= tolerance_seconds + tolerance_share * server:
        return
    case.fail("violated", f"client and server disagree on the mean TTFT by {abs(client - server):.4f} s", rows)


def speedups(case: Case, other: Case) -> list[float]:
    """Return other over case, per equal request; refuse fewer than five."""
    ratios = [
        pair.other.ttft_seconds / max(pair.one.ttft_seconds, 1e-9)
        for pair in pairs(case.phase, other.phase)
        if pair.one.ttft_seconds is not None and pair.other.ttft_seconds is not None
    ]
    if len(ratios) < MINIMUM_PAIRS:
        case.fail(
            "too-few-samples",
            f"{len(ratios)} equal requests in {case.measurement.arm}/{case.name} and "
            f"{other.measurement.arm}/{other.name}: a direction needs at least {MINIMUM_PAIRS}",
            advice=("send more sessions, and the same workload and seed in both",),
        )
    return ratios


def _bounded(
    assertion: str,
    q: float,
    measurement: Measurement,
    bound_seconds: float | None,
    relative_to: Measurement | None,
    factor: float,
    slack_seconds: float,
    confidence: float | None,
    phase: str,
    relative_phase: str | None,
) -> None:
    if (bound_seconds is None) == (relative_to is None):
        raise TypeError(f"{assertion} needs either bound_seconds or relative_to")
    case = open_case(assertion, measurement, phase)
    label = "slowest request" if q == 1.0 else quantile_name(q)
    if q < 1:
        need_samples(case, q, len(case.times))
    rows: dict[str, str] = {}
    if relative_to is not None:
        other = open_case(assertion, relative_to, relative_phase or phase)
        if q < 1:
            need_samples(other, q, len(other.times), what=f" of {relative_to.arm!r}")
        base = quantile(other.times, q)
        limit = base * factor + slack_seconds
        rows["compared with"] = f"{base:.4f} s, {label} of {relative_to.arm}/{other.name}, n = {len(other.times)}"
        threshold = f"<= {limit:.4f} s ({factor:g} times that" + (f" + {slack_seconds:g} s)" if slack_seconds else ")")
    else:
        limit = float(bound_seconds or 0.0)
        threshold = f"<= {limit:g} s"
    value = quantile(case.times, q)
    if confidence is not None:
        value = _upper_bound(case, q, confidence)
        rows["confidence"] = f"the bound is asked of the upper {confidence:.0%} limit, not of the sample {label}"
    if value <= limit:
        return
    rows = {
        label: f"{value:.4f} s",
        "range": f"{min(case.times):.4f} to {max(case.times):.4f} s, median {quantile(case.times, 0.5):.4f} s",
        **rows,
        "threshold": threshold,
    }
    case.fail(
        "violated",
        f"the {label} of TTFT in phase {phase!r} of {measurement.arm!r} is {value:.4f} s, allowed is {limit:.4f} s",
        rows,
        advice=why_not_faster(measurement, case.phase) if q == 0.5 else why_long_tail(measurement, case.phase),
    )


def _upper_bound(case: Case, q: float, confidence: float) -> float:
    # The equal-tailed interval spends half of the error above: a one-sided 95 % limit is the top of a 90 % interval.
    interval = quantile_interval(case.times, q, 2 * confidence - 1)
    if interval.high is None:
        needed = smallest_n(q, confidence)
        case.fail(
            "too-few-samples",
            f"no upper limit of the {quantile_name(q)} exists for {len(case.times)} samples at {confidence:.0%}: "
            f"{needed} are needed",
            {"needed": str(needed)},
        )
    return interval.high
