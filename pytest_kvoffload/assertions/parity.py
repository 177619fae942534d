"""Assertions on the text: what a tier gives back must be what was stored."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_kvoffload.assertions.evidence import Case, open_case, pairs
from pytest_kvoffload.records import Measurement, PhaseResult, RequestSample

__tracebackhide__ = True  # pytest shows the line of the test, not ours

NOISE_SHARE = 0.25
"""Share of cold answers that may differ between two boots of one engine before that is called a difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two answers to one prompt that are not equal."""

    session: int
    turn: int
    requests: tuple[int, int]
    position: int
    tokens: tuple[str, str]


def assert_same_output(
    measurement: Measurement,
    *,
    relative_to: Measurement | None = None,
    phase: str = "restored",
    against: str = "cold",
) -> None:
    """Assert that equal prompts gave equal tokens at temperature 0.

    Within one measurement: ``phase`` against ``against``. With ``relative_to`` (the control): ``phase`` here against
    the same phase there; requests whose *cold* answers differ between the two servers already are left out, for no tier
    was involved in those (two boots of one engine may round differently), and their number is in the text.

    Raises:
        MeterAssertionError: ``violated`` with the first differing token, its position and the requests concerned;
            ``phase-missing`` when there is nothing to compare with; ``too-few-samples`` when no request has an equal
            one.
    """
    case = open_case("assert_same_output", measurement, phase)
    if relative_to is None:
        other = open_case("assert_same_output", measurement, against)
        excluded: set[tuple[int, int]] = set()
    else:
        other = open_case("assert_same_output", relative_to, phase)
        excluded = _cold_differences(measurement, relative_to, against)
    rows: dict[str, str] = {}
    if excluded:
        rows["left out"] = f"{len(excluded)} requests whose cold answers differ between the two servers already"
    if len(excluded) > NOISE_SHARE * max(1, len(other.phase.samples)):
        case.fail(
            "violated",
            f"{len(excluded)} of {len(other.phase.samples)} requests gave other tokens than the control already in "
            f"phase {against!r}, which is more than two boots of one engine differ by",
            rows,
            advice=("is it the same model, dtype and vLLM on both sides? Then the connector corrupts what it stores",),
        )
    compared, differences = 0, []
    for pair in pairs(case.phase, other.phase):
        if (pair.one.session, pair.one.turn) in excluded:
            continue
        compared += 1
        difference = first_difference(pair.other, pair.one)
        if difference is not None:
            differences.append(difference)
    where = f"{other.measurement.arm}/{other.name}"
    rows["compared"] = f"{compared} requests of {case.measurement.arm}/{case.name} with {where}"
    if compared == 0:
        _nothing(case, other, rows)
    if not differences:
        return
    first = differences[0]
    case.fail(
        "violated",
        f"{len(differences)} of {compared} requests gave other tokens than in {where}: first in session "
        f"{first.session} turn {first.turn} at position {first.position}, {first.tokens[0]} there and "
        f"{first.tokens[1]} here",
        {
            **rows,
            "requests": ", ".join(f"{d.requests[1]} (position {d.position})" for d in differences[:10])
            + (" ..." if len(differences) > 10 else ""),
        },
        advice=(
            "what came back from the tier is not what was stored: look for KV corruption (kv-cache dtype, hybrid or "
            "MLA layouts, speculative decoding); or greedy decoding is a near tie for this model: compare cold passes",
        ),
    )


def first_difference(expected: RequestSample, got: RequestSample) -> Difference | None:
    """Return where two answers part; ``None`` when one is the beginning of the other or they are equal."""
    one: tuple[object, ...] = expected.output_token_ids or tuple(expected.output_text or "")
    two: tuple[object, ...] = got.output_token_ids or tuple(got.output_text or "")
    if not (expected.output_token_ids and got.output_token_ids):
        one, two = tuple(expected.output_text or ""), tuple(got.output_text or "")
    kind = "token" if expected.output_token_ids and got.output_token_ids else "character"
    for position, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return _difference(expected, got, position, f"{kind} {a!r}", f"{kind} {b!r}")
    if len(one) != len(two):
        shorter = min(len(one), len(two))
        return _difference(expected, got, shorter, _or_end(one, shorter, kind), _or_end(two, shorter, kind))
    return None


def _or_end(answer: tuple[object, ...], position: int, kind: str) -> str:
    return f"{kind} {answer[position]!r}" if position < len(answer) else "the end"


def _difference(expected: RequestSample, got: RequestSample, position: int, a: str, b: str) -> Difference:
    return Difference(
        session=got.session,
        turn=got.turn,
        requests=(expected.index, got.index),
        position=position,
        tokens=(a, b),
    )


def _cold_differences(one: Measurement, other: Measurement, cold: str) -> set[tuple[int, int]]:
    """Return the requests whose answers differ between two servers before any tier was read."""
    phases: list[PhaseResult] = []
    for measurement in (one, other):
        if cold not in measurement.phase_names:
            return set()
        phases.append(measurement.phase(cold))
    return {
        (pair.one.session, pair.one.turn)
        for pair in pairs(phases[0], phases[1])
        if first_difference(pair.other, pair.one) is not None
    }


def _nothing(case: Case, other: Case, rows: dict[str, str]) -> None:
    case.fail(
        "too-few-samples",
        f"no request of {case.name!r} has an equal one in {other.measurement.arm}/{other.name}: nothing was compared",
        rows,
        advice=("this workload mode asks nothing twice in these phases; compare with relative_to= the control",),
    )
