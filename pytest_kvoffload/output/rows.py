"""What a table says about a measurement: one row a phase, every number with its reservation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_kvoffload.assertions.parity import first_difference
from pytest_kvoffload.errors import MissingExtraError
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.records import Measurement, PhaseResult, RequestSample
from pytest_kvoffload.stats import quantile, quantile_interval, smallest_n

if TYPE_CHECKING:
    from pytest_kvoffload.metrics.meters import Meters
    from pytest_kvoffload.probe import Progress

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


def phase_rows(measurement: Measurement, *, quantiles: Iterable[float] = (0.5, 0.95, 0.99)) -> tuple[PhaseRow, ...]:
    """Return one row a phase, in the order they ran."""
    wanted = tuple(quantiles)
    return tuple(_row(measurement, phase, wanted) for phase in measurement.phases)


def phase_meters(measurement: Measurement, phase: PhaseResult) -> Meters:
    """Return the meters of a phase, over the prompt tokens that the client sent."""
    asked = sum(sample.prompt_tokens for sample in phase.samples if sample.ok)
    return read_meters(phase.delta, vllm_version=measurement.server.vllm_version, prompt_tokens=asked or None)


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


def phase_text(progress: Progress) -> str:
    """Say in one line how far a phase has come."""
    parts = [f"{progress.phase}: {progress.done}/{progress.total} requests"]
    if progress.hit_rate is not None:
        parts.append(f"hit rate {progress.hit_rate:.2f}")
    if progress.ttft_p50_seconds is not None:
        parts.append(f"TTFT p50 {format_seconds(progress.ttft_p50_seconds)}")
    return ", ".join(parts)


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


def _row(measurement: Measurement, phase: PhaseResult, quantiles: tuple[float, ...]) -> PhaseRow:
    meters = phase_meters(measurement, phase)
    times = [s.ttft_seconds for s in phase.samples if s.ok and s.ttft_seconds is not None]
    cold = next((p for p in measurement.phases if p.name == "cold"), None)
    return PhaseRow(
        arm=measurement.arm,
        phase=phase.name,
        n=len(phase.samples),
        failed=sum(not s.ok for s in phase.samples),
        device_rate=_rate(meters, "device"),
        external_rate=_rate(meters, "external"),
        tier_rates={tier: rate for tier in SPLIT_TIERS if (rate := _rate(meters, tier))},
        ttft=tuple(_cell(times, q) for q in quantiles),
        store_bytes=meters.store_bytes.value,
        load_bytes=meters.load_bytes.value,
        same_output=None if cold is None or cold is phase else same_output(cold.samples, phase.samples),
        complete=measurement.complete,
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
