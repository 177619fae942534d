"""What every assertion reads before it judges: the phase, its samples and its meters, with refusals by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from pytest_kvoffload.assertions.failure import MeterAssertionError, Outcome
from pytest_kvoffload.metrics.meters import Meters, read_meters
from pytest_kvoffload.metrics.readings import Reading
from pytest_kvoffload.metrics.replicas import find_replica, of_replica
from pytest_kvoffload.records import Measurement, PhaseResult, RequestSample
from pytest_kvoffload.stats import smallest_n
from pytest_kvoffload.workload.chunks import chunk_tokens

__tracebackhide__ = True  # pytest shows the line of the test, not ours

_ADVICE: Mapping[Outcome, str] = {
    "incomplete": "run it again; an interrupted measurement proves nothing",
    "failed-requests": "look at the server's log; only assert_no_failed_requests judges a phase with failed requests",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One assertion about one phase of one measurement, and how it fails."""

    assertion: str
    measurement: Measurement
    phase: PhaseResult
    replica: str | None = None
    """The meters of this replica only; ``None`` is all of them together."""

    @property
    def name(self) -> str:
        """The phase's name."""
        return self.phase.name

    @property
    def n(self) -> int:
        """Requests of the phase."""
        return len(self.phase.samples)

    @property
    def meters(self) -> Meters:
        """What the server's metrics did in the phase."""
        delta = self.phase.delta
        if self.replica is not None:
            delta = of_replica(delta, find_replica(delta, self.replica))
        return read_meters(delta, vllm_version=self.measurement.server.vllm_version)

    @property
    def times(self) -> list[float]:
        """Times to first token of the requests that succeeded, seconds."""
        return [s.ttft_seconds for s in self.phase.samples if s.ok and s.ttft_seconds is not None]

    def fail(
        self,
        outcome: Outcome,
        message: str,
        evidence: Mapping[str, str] | None = None,
        *,
        advice: tuple[str, ...] = (),
    ) -> NoReturn:
        """Raise, with what belongs to every failure added."""
        raise MeterAssertionError(
            assertion=self.assertion,
            outcome=outcome,
            message=message,
            evidence={
                **(evidence or {}),
                **({"replica": self.replica} if self.replica is not None else {}),
                **common(self.measurement, self.phase),
            },
            advice=(*advice, *((_ADVICE[outcome],) if outcome in _ADVICE else ())),
        )

    def value(self, reading: Reading) -> float:
        """Return a reading's number, or fail because there is none."""
        if reading.value is None:
            self.fail(
                "metric-absent",
                f"{reading.metric} cannot be read in phase {self.name!r}: {reading.reason}",
                {"metric": reading.metric},
            )
        return reading.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same request in two phases (or two measurements)."""

    one: RequestSample
    other: RequestSample
    repeat: int = field(default=0)


def common(measurement: Measurement, phase: PhaseResult | None) -> dict[str, str]:
    """Return the evidence that every failure text carries."""
    rows = {"arm": f"{measurement.arm} (connector {measurement.connector.name}, kind {measurement.connector.kind})"}
    if phase is not None:
        failed = sum(1 for sample in phase.samples if not sample.ok)
        rows["phase"] = phase.name
        rows["n"] = f"{len(phase.samples)} requests" + (f", {failed} failed" if failed else "")
    rows["workload"] = f"mode {measurement.plan.mode}, seed {measurement.plan.seed}: {measurement.plan.explanation}"
    notes = [*measurement.notes, *(phase.notes if phase is not None else ())]
    if phase is not None:
        notes += read_meters(phase.delta, vllm_version=measurement.server.vllm_version).caveats
    for number, note in enumerate(notes, 1):
        rows["note" if len(notes) == 1 else f"note {number}"] = note
    for name, path in measurement.artefacts.items():
        rows[name.replace("_", " ")] = path
    return rows


def open_case(
    assertion: str, measurement: Measurement, phase: str, *, allow_failed: bool = False, replica: str | None = None
) -> Case:
    """Find the phase and refuse a measurement that is incomplete or whose requests failed.

    Raises:
        MeterAssertionError: outcome ``incomplete``, ``phase-missing`` or ``failed-requests``.
        UsageError: a replica that does not exist.
    """
    if not measurement.complete:
        raise MeterAssertionError(
            assertion=assertion,
            outcome="incomplete",
            message=f"the measurement of {measurement.arm!r} is incomplete, so nothing is judged on it",
            evidence=common(measurement, None),
            advice=(_ADVICE["incomplete"],),
        )
    if phase not in measurement.phase_names:
        has = ", ".join(measurement.phase_names) or "none"
        raise MeterAssertionError(
            assertion=assertion,
            outcome="phase-missing",
            message=f"the measurement of {measurement.arm!r} has no phase {phase!r}; workload mode "
            f"{measurement.plan.mode!r} has: {has}",
            evidence=common(measurement, None),
            advice=(f"pass phase= one of: {has}; or choose a workload mode that has a phase {phase!r}",),
        )
    case = Case(assertion=assertion, measurement=measurement, phase=measurement.phase(phase), replica=replica)
    if replica is not None:
        find_replica(case.phase.delta, replica)
    failed = [sample for sample in case.phase.samples if not sample.ok]
    if failed and not allow_failed:
        case.fail(
            "failed-requests",
            f"{len(failed)} of {case.n} requests failed in phase {phase!r}, so its meters are not judged",
            {"first error": f"request {failed[0].index}: {failed[0].error}"},
        )
    if not case.phase.samples:
        case.fail("too-few-samples", f"phase {phase!r} has no requests")
    return case


def need_samples(case: Case, q: float, n: int, *, what: str = "") -> None:
    """Refuse a quantile that ``n`` samples cannot carry.

    Raises:
        MeterAssertionError: outcome ``too-few-samples``; the text says how many are needed.
    """
    needed = smallest_n(q)
    if n < needed:
        label = quantile_name(q)
        case.fail(
            "too-few-samples",
            f"the {label} of {n} samples{what} is refused: a {label} needs at least {needed}, below that it is the "
            "slowest request under another name",
            {"needed": str(needed)},
            advice=(
                f"send more requests (workload.sessions or workload.repeats), or assert what {n} samples can carry: "
                "assert_ttft_p50_below, or assert_ttft_max_bounded for the slowest request",
            ),
        )


def number(value: float) -> str:
    """Render a count of tokens, bytes or requests: whole and with separators, never as 5e+07."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}"


def quantile_name(q: float) -> str:
    """Return ``p99`` for 0.99."""
    return f"p{q * 100:g}"


def pairs(one: PhaseResult, other: PhaseResult) -> list[Pair]:
    """Match equal requests: same session and turn, first with first, further visits with the first.

    Prompts are drawn by seed, session and turn, so equal keys are equal prompts wherever the workloads are equal.
    """
    by_key: dict[tuple[int, int], list[RequestSample]] = {}
    for sample in other.samples:
        by_key.setdefault((sample.session, sample.turn), []).append(sample)
    seen: dict[tuple[int, int], int] = {}
    found = []
    for sample in one.samples:
        key = (sample.session, sample.turn)
        matches = by_key.get(key)
        if not matches:
            continue
        visit = seen.get(key, 0)
        seen[key] = visit + 1
        found.append(Pair(one=sample, other=matches[min(visit, len(matches) - 1)], repeat=visit))
    return found


def rounding(measurement: Measurement, note: str) -> str:
    """Complete the rounding note of a hit rate with this measurement's chunk and prompt."""
    chunk = chunk_tokens(measurement.server)
    workload = measurement.workload
    if measurement.plan.mode == "replay_log":
        return note
    whole = workload.prefix_tokens // chunk * chunk
    return (
        f"{note}. Here a chunk is {chunk} tokens: of a prefix of {workload.prefix_tokens} tokens at most {whole} hit, "
        f"of a prompt of {workload.prefix_tokens + workload.suffix_tokens} that is "
        f"{whole / (workload.prefix_tokens + workload.suffix_tokens):.3f}"
    )
