"""What a table says about a measurement: one row a phase, every number with its reservation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_kvoffload.assertions.parity import first_difference
from pytest_kvoffload.errors import MissingExtraError
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.records import Delta, Measurement, PhaseResult, RequestSample
from pytest_kvoffload.stats import quantile, quantile_interval, smallest_n

if TYPE_CHECKING:
    from pytest_kvoffload.metrics.meters import Meters

SPLIT_TIERS = ("host", "disk", "p2p")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileCell:
    """A TTFT quantile in seconds with its 95 % interval, where one can be given."""

    q: float
    seconds: float | None
    low: float | None = None
    high: float | None = None
    enough: bool = True
    """``False`` when n cannot carry the quantile: then ``seconds`` is the slowest request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One phase of one arm. Rates are of prompt tokens; ``None`` is "not known", never zero."""

    arm: str
    phase: str
    n: int
    failed: int
    device_rate: float | None
    external_rate: float | None
    tier_rates: Mapping[str, float]
    """The external rate told apart by tier, where the server does so and a tier served anything."""
    ttft: tuple[QuantileCell, ...]
    store_bytes: float | None
    load_bytes: float | None
    same_output: tuple[int, int] | None
    """Requests with the tokens of the cold pass, of those that can be compared; ``None`` for the cold pass."""
    complete: bool = True
    verdict: str = ""
    """What was judged of this phase, in one word; empty where nothing was."""


def phase_rows(measurement: Measurement, *, quantiles: Iterable[float] = (0.5, 0.95, 0.99)) -> tuple[PhaseRow, ...]:
    """Return one row a phase, in the order they ran."""
    return arm_rows((measurement,), quantiles=quantiles)


def arm_rows(
    blocks: Sequence[Measurement], *, arm: str | None = None, quantiles: Iterable[float] = (0.5, 0.95, 0.99)
) -> tuple[PhaseRow, ...]:
    """Return one row a phase of an arm that was measured in blocks (equal but for the seed), all blocks together.

    Args:
        blocks: in the order they ran; at least one.
        arm: what the rows call it; the first block's own name when ``None``.
        quantiles: of the TTFT, each in (0, 1).
    """
    wanted = tuple(quantiles)
    name = blocks[0].arm if arm is None else arm
    return tuple(_row(name, _pieces(blocks, phase), wanted) for phase in phases_named(blocks))


def phases_named(blocks: Iterable[Measurement]) -> tuple[str, ...]:
    """Return the names of the phases of all blocks, in the order they ran."""
    return tuple(dict.fromkeys(phase.name for block in blocks for phase in block.phases))


def phase_meters(measurement: Measurement, *phases: PhaseResult) -> Meters:
    """Return the meters of a phase (of several blocks: all together), over the prompt tokens that the client sent."""
    asked = sum(sample.prompt_tokens for phase in phases for sample in phase.samples if sample.ok)
    delta = phases[0].delta if len(phases) == 1 else _together([phase.delta for phase in phases])
    return read_meters(delta, vllm_version=measurement.server.vllm_version, prompt_tokens=asked or None)


def same_output(first: Iterable[RequestSample], second: Iterable[RequestSample]) -> tuple[int, int]:
    """Count the requests of ``second`` that gave the answer of the same request (session, turn) in ``first``.

    Returns:
        How many are equal, and how many could be compared (both answered, with token ids or with text).
    """
    known = {(s.session, s.turn): s for s in first if s.ok}
    pairs = [(known[s.session, s.turn], s) for s in second if s.ok and (s.session, s.turn) in known]
    told = [
        (a, b) for a, b in pairs if (a.output_token_ids and b.output_token_ids) or (a.output_text and b.output_text)
    ]
    return sum(first_difference(a, b) is None for a, b in told), len(told)


def format_seconds(seconds: float | None) -> str:
    """Three digits in the unit that fits: ``84.2 ms``, ``1.31 s``."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def format_bytes(count: float | None, *, decimals: int = 1) -> str:
    """Binary units: ``23.0 MiB``."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.{decimals}f} {unit}"
        value /= 1024
    return f"{value:.{decimals}f} TiB"


def format_rate(rate: float | None) -> str:
    """Two decimals, or a dash for "not known"."""
    return "-" if rate is None else f"{rate:.2f}"


def tier_hits(row: PhaseRow) -> str:
    """Return the hit rate of the tiers, told apart where more than one served: ``0.97 (host 0.60, disk 0.37)``."""
    text = format_rate(row.external_rate)
    told = ", ".join(f"{tier} {rate:.2f}" for tier, rate in row.tier_rates.items())
    return f"{text} ({told})" if len(row.tier_rates) > 1 else text


def quantile_text(cell: QuantileCell, *, interval: bool) -> str:
    """Return ``23.5 [23.2, 23.8] ms``; the slowest request with a star where n cannot carry the quantile."""
    if cell.seconds is None:
        return "-"
    if not cell.enough:
        return f"{format_seconds(cell.seconds)}*"
    if not interval or cell.low is None or cell.high is None:
        return format_seconds(cell.seconds)
    factor, unit = (1000, "ms") if cell.high < 0.9995 else (1, "s")
    low, mid, high = (f"{value * factor:.3g}" for value in (cell.low, cell.seconds, cell.high))
    return f"{mid} [{low}, {high}] {unit}"


def quantiles_text(cells: Sequence[QuantileCell]) -> str:
    """Return ``23.5/29.2/31.4 ms``: all quantiles in the unit that fits the largest, stars as in one alone."""
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    if not known:
        return "-"
    factor, unit = (1000, "ms") if max(known) < 0.9995 else (1, "s")
    parts = (
        "-" if cell.seconds is None else f"{cell.seconds * factor:.3g}{'' if cell.enough else '*'}" for cell in cells
    )
    return f"{'/'.join(parts)} {unit}"


def _row(arm: str, pieces: list[tuple[Measurement, PhaseResult]], quantiles: tuple[float, ...]) -> PhaseRow:
    samples = [sample for _, phase in pieces for sample in phase.samples]
    meters = phase_meters(pieces[0][0], *(phase for _, phase in pieces))
    times = [s.ttft_seconds for s in samples if s.ok and s.ttft_seconds is not None]
    return PhaseRow(
        arm=arm,
        phase=pieces[0][1].name,
        n=len(samples),
        failed=sum(not s.ok for s in samples),
        device_rate=_rate(meters, "device"),
        external_rate=_rate(meters, "external"),
        tier_rates={tier: rate for tier in SPLIT_TIERS if (rate := _rate(meters, tier))},
        ttft=tuple(_cell(times, q) for q in quantiles),
        store_bytes=meters.store_bytes.value,
        load_bytes=meters.load_bytes.value,
        same_output=_same_as_cold(pieces),
        complete=all(measurement.complete for measurement, _ in pieces),
    )


def _pieces(blocks: Iterable[Measurement], phase: str) -> list[tuple[Measurement, PhaseResult]]:
    return [(block, found) for block in blocks for found in block.phases if found.name == phase]


def _same_as_cold(pieces: Iterable[tuple[Measurement, PhaseResult]]) -> tuple[int, int] | None:
    """Each block is compared with its own cold pass: sessions of different blocks are different prompts."""
    equal = compared = 0
    found = False
    for measurement, phase in pieces:
        cold = next((p for p in measurement.phases if p.name == "cold"), None)
        if cold is None or cold is phase:
            continue
        found = True
        same, told = same_output(cold.samples, phase.samples)
        equal, compared = equal + same, compared + told
    return (equal, compared) if found else None


def _together(deltas: list[Delta]) -> Delta:
    """Lay windows side by side: every question to a delta sums over the series that match."""
    return Delta(
        seconds=sum(delta.seconds for delta in deltas),
        samples=tuple(sample for delta in deltas for sample in delta.samples),
        families={name: kind for delta in deltas for name, kind in delta.families.items()},
        resets=tuple(dict.fromkeys(text for delta in deltas for text in delta.resets)),
        restarts=tuple(dict.fromkeys(text for delta in deltas for text in delta.restarts)),
        vanished=tuple(dict.fromkeys(text for delta in deltas for text in delta.vanished)),
    )


def _rate(meters: Meters, tier: str) -> float | None:
    found = hit_rate(meters, tier)
    return found.rate if isinstance(found, HitRate) else None


def _cell(times: list[float], q: float) -> QuantileCell:
    if not times:
        return QuantileCell(q=q, seconds=None, enough=False)
    if len(times) < smallest_n(q):
        return QuantileCell(q=q, seconds=max(times), enough=False)
    try:
        interval = quantile_interval(times, q)
    except MissingExtraError:
        return QuantileCell(q=q, seconds=quantile(times, q))
    return QuantileCell(q=q, seconds=quantile(times, q), low=interval.low, high=interval.high)
