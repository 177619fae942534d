"""From the evidence of a scenario to its outcome and its verdict."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_kvoffload.faults.catalog import Fault
from pytest_kvoffload.records import FaultOutcome, FaultResult, FaultVerdict, Measurement, PhaseResult, RequestSample

SERVED_SHARE = 0.5
"""Share of the healthy hit rate from which on a tier counts as serving."""
TIMED_OUT = "no complete answer within"
"""How the client words a request that was given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a scenario left: the measurement, how it ended, what the fault said about itself."""

    measurement: Measurement | None
    death: str = ""
    """Why the server died, empty when it did not."""
    boot_failure: str = ""
    """Why it did not boot."""
    hung: str = ""
    """What had no end within the bound."""
    felt: bool | None = None
    """Whether anything ran into the fault; ``None`` when that cannot be counted."""
    seconds: float | None = None
    notes: tuple[str, ...] = ()


def judge(fault: Fault, connector: str, kind: str, evidence: Evidence) -> FaultResult:
    """Put one result together."""
    measurement = evidence.measurement
    broken_name = "restored" if fault.from_boot else "fault"
    broken = _phase(measurement, broken_name)
    healthy = None if fault.from_boot else _phase(measurement, "restored")
    outcome, why = _outcome(evidence, broken, healthy)
    before, during = _hit_rate(healthy), _hit_rate(broken, known=_sessions(healthy))
    recovered = _recovered(fault, measurement, healthy) if not fault.from_boot else None
    verdict, reason = _verdict(fault, evidence, outcome, why, before=before, recovered=recovered)
    samples = broken.samples if broken else ()
    return FaultResult(
        fault=fault.name,
        connector=connector,
        kind=kind,
        outcome=outcome,
        verdict=verdict,
        expected=fault.expected,
        reason=reason,
        vllm_version=measurement.server.vllm_version if measurement else None,
        failed_requests=sum(not sample.ok for sample in samples) if broken else None,
        requests=len(samples) if broken else None,
        hit_rate_before=before,
        hit_rate=during,
        ttft_max_seconds=_slowest(broken),
        ttft_before_seconds=_slowest(healthy),
        recovered=recovered,
        seconds=evidence.seconds,
        notes=evidence.notes,
        measurement=measurement,
    )


def first_wrong_output(measurement: Measurement) -> str:
    """Say which prompt was answered with other tokens than at its first sight; empty when none was."""
    first: dict[tuple[int, int], tuple[str, RequestSample]] = {}
    for phase in measurement.phases:
        for sample in phase.samples:
            if not sample.ok:
                continue
            key = (sample.session, sample.turn)
            if key not in first:
                first[key] = (phase.name, sample)
            elif _answer(first[key][1]) != _answer(sample):
                return (
                    f"session {sample.session} was answered with other tokens in phase {phase.name!r} than in "
                    f"{first[key][0]!r}"
                )
    return ""


def _answer(sample: RequestSample) -> object:
    return sample.output_token_ids or sample.output_text


def _outcome(
    evidence: Evidence, broken: PhaseResult | None, healthy: PhaseResult | None
) -> tuple[FaultOutcome | None, str]:
    if evidence.hung:
        return "hung", evidence.hung
    if evidence.boot_failure:
        return "failed_loudly", f"the server did not boot: {evidence.boot_failure}"
    if evidence.measurement is not None and (wrong := first_wrong_output(evidence.measurement)):
        return "wrong_output", wrong
    if evidence.death:
        return "failed_loudly", evidence.death
    if broken is None or not broken.samples:
        return None, "no request was sent while the fault was on"
    failed = [sample for sample in broken.samples if not sample.ok]
    stuck = [sample for sample in failed if (sample.error or "").startswith(TIMED_OUT)]
    if stuck:
        return "hung", f"{len(stuck)} of {len(broken.samples)} requests had {stuck[0].error}"
    if failed:
        return "failed_loudly", f"{len(failed)} of {len(broken.samples)} requests failed: {failed[0].error}"
    rate = _hit_rate(broken, known=_sessions(healthy)) or 0.0
    usual = _hit_rate(healthy) or 0.0
    if rate > 0 and (healthy is None or rate >= SERVED_SHARE * usual):
        return "served", f"all {len(broken.samples)} requests were answered, hit rate {rate:.2f}"
    return "degraded", f"all {len(broken.samples)} requests were answered, by recomputing (hit rate {rate:.2f})"


def _verdict(
    fault: Fault,
    evidence: Evidence,
    outcome: FaultOutcome | None,
    why: str,
    *,
    before: float | None,
    recovered: bool | None,
) -> tuple[FaultVerdict, str]:
    if outcome is None:
        return "inconclusive", why
    if outcome in ("hung", "wrong_output") and outcome not in fault.expected:
        return "fail", f"{why}; acceptable is {' or '.join(fault.expected)}"
    if not fault.from_boot and evidence.measurement is not None and not before and not evidence.boot_failure:
        return "inconclusive", "the tier served nothing before the fault began, so nothing can be said about it"
    if outcome not in fault.expected:
        return "fail", f"{why}; acceptable is {' or '.join(fault.expected)}"
    if evidence.felt is False and outcome == "served":
        return "inconclusive", f"{why}, but nothing ran into the fault: another tier served"
    if recovered is False and not evidence.death:
        return "fail", f"{why}; and it did not recover when the fault was over"
    return "pass", why


def _phase(measurement: Measurement | None, name: str) -> PhaseResult | None:
    if measurement is None or name not in measurement.phase_names:
        return None
    return measurement.phase(name)


def _sessions(phase: PhaseResult | None) -> frozenset[int] | None:
    return None if phase is None else frozenset(sample.session for sample in phase.samples)


def _hit_rate(phase: PhaseResult | None, *, known: frozenset[int] | None = None) -> float | None:
    """Cached over prompt tokens of the answered requests; the device was reset, so a tier gave them.

    ``known`` limits it to sessions that had been seen before. ``None`` when the server does not tell.
    """
    if phase is None:
        return None
    told = [
        (sample.cached_tokens, sample.prompt_tokens)
        for sample in phase.samples
        if sample.ok and sample.cached_tokens is not None and (known is None or sample.session in known)
    ]
    asked = sum(prompt for _, prompt in told)
    return sum(cached or 0 for cached, _ in told) / asked if asked else None


def _slowest(phase: PhaseResult | None) -> float | None:
    if phase is None:
        return None
    return max((s.ttft_seconds for s in phase.samples if s.ok and s.ttft_seconds is not None), default=None)


def _recovered(fault: Fault, measurement: Measurement | None, healthy: PhaseResult | None) -> bool | None:
    after = _phase(measurement, "recovered")
    if after is None:
        return None
    if any(not sample.ok for sample in after.samples):
        return False
    if fault.lasting:  # the tier's content is gone, or was made wrong and then dropped: requests that succeed are all
        return True
    usual, now = _hit_rate(healthy) or 0.0, _hit_rate(after, known=_sessions(healthy)) or 0.0
    return now >= SERVED_SHARE * usual
