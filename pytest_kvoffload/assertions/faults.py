"""Assertions about a fault: requests still succeed while it is on, and all is as before soon after it."""

from __future__ import annotations

from statistics import median

from pytest_kvoffload.assertions.evidence import Case, open_case
from pytest_kvoffload.records import Measurement, RequestSample

__tracebackhide__ = True  # pytest shows the line of the test, not ours
HIT_SHARE = 0.5
"""Share of its usual hit tokens from which on a request counts as served by the tier again."""


def assert_requests_succeed(measurement: Measurement, *, phase: str = "fault", min_share: float = 1.0) -> None:
    """Assert that requests are answered in a phase, be it without the tier's help.

    Unlike the other assertions it judges a measurement that ended early too: requests that failed before a server
    died have failed.

    Args:
        measurement: has the phase (mode ``fault`` has ``fault`` and ``recovered``).
        phase: which one.
        min_share: share of its requests that must be answered, in (0, 1].

    Raises:
        MeterAssertionError: ``violated`` with the errors; ``phase-missing``, ``too-few-samples``, ``incomplete``.
    """
    name = "assert_requests_succeed"
    if phase not in measurement.phase_names or not measurement.phase(phase).samples:
        open_case(name, measurement, phase, allow_failed=True)
    case = Case(assertion=name, measurement=measurement, phase=measurement.phase(phase))
    failed = [sample for sample in case.phase.samples if not sample.ok]
    answered = case.n - len(failed)
    if answered < min_share * case.n:
        kinds = sorted({sample.error or "no token came" for sample in failed})
        wanted = "all must be" if min_share >= 1 else f"at least a share of {min_share:g} must be"
        case.fail(
            "violated",
            f"{answered} of {case.n} requests were answered in phase {phase!r}, {wanted}",
            {f"error {number}": text for number, text in enumerate(kinds[:3], 1)},
            advice=("a tier is a cache: without it requests are to be computed, not refused",),
        )
    if not measurement.complete:
        open_case(name, measurement, phase, allow_failed=True)


def assert_recovers_within(
    measurement: Measurement,
    *,
    requests: int | None = None,
    seconds: float | None = None,
    phase: str = "recovered",
    relative_to: str = "restored",
    ttft_factor: float | None = None,
) -> None:
    """Assert that after a fault requests are as they were before it, from some request or moment on.

    A request has recovered when it succeeded and got at least half of the cached tokens that the same prompt got in
    ``relative_to``; with ``ttft_factor`` its time to first token must also be at most that factor times the median
    there. Prompts that do not occur there need only succeed. The phase begins when the fault has ended.

    Args:
        measurement: has both phases.
        requests: how many requests may still differ, counted from the phase's first one; 0 allows none.
        seconds: how long after the phase's begin a request may still differ, by the time it was sent.
        phase: the phase after the fault.
        relative_to: the phase before it.
        ttft_factor: bound on the time to first token; ``None`` looks at hits only.

    Raises:
        MeterAssertionError: ``violated`` names the last request that had not recovered; ``metric-absent`` where the
            server does not report cached tokens; ``phase-missing``, ``incomplete``.
        ValueError: neither or both of ``requests`` and ``seconds``.
    """
    if (requests is None) == (seconds is None):
        raise ValueError("assert_recovers_within needs requests= or seconds=, and not both")
    name = "assert_recovers_within"
    before = open_case(name, measurement, relative_to)
    case = open_case(name, measurement, phase, allow_failed=True)
    usual = {(sample.session, sample.turn): sample for sample in before.phase.samples}
    if any(sample.cached_tokens is None for sample in usual.values()):
        case.fail("metric-absent", "the server does not report cached tokens (--enable-prompt-tokens-details)")
    slowest = None if ttft_factor is None else ttft_factor * median(before.times)
    late = [
        (position, sample)
        for position, sample in enumerate(case.phase.samples)
        if _why_not(sample, usual.get((sample.session, sample.turn)), slowest)
    ]
    late = [
        (position, sample)
        for position, sample in late
        if (requests is not None and position >= requests) or (seconds is not None and sample.sent_at_seconds > seconds)
    ]
    if not late:
        return
    position, sample = late[-1]
    bound = f"{requests} requests" if requests is not None else f"{seconds:g} s"
    case.fail(
        "violated",
        f"phase {phase!r} had not recovered within {bound}: {len(late)} later requests differ, the last of them number "
        f"{position + 1} of {case.n}, sent {sample.sent_at_seconds:.1f} s after the fault ended",
        {"that request": _why_not(sample, usual.get((sample.session, sample.turn)), slowest)},
    )


def _why_not(sample: RequestSample, before: RequestSample | None, slowest: float | None) -> str:
    """Say in what a request has not recovered; empty when it has."""
    if not sample.ok:
        return f"failed: {sample.error}"
    if slowest is not None and sample.ttft_seconds is not None and sample.ttft_seconds > slowest:
        return f"first token after {sample.ttft_seconds:.3f} s, at most {slowest:.3f} s is asked"
    if before is None or before.cached_tokens is None:
        return ""
    if (sample.cached_tokens or 0) < HIT_SHARE * before.cached_tokens:
        return f"{sample.cached_tokens or 0} cached tokens, {before.cached_tokens} before the fault"
    return ""
