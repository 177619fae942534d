"""The requests of a report as series to draw: thinned so that a run of 100,000 stays one small file."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_kvoffload.errors import MissingExtraError
from pytest_kvoffload.output.report.arms import ReportArm
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.records import RequestSample
from pytest_kvoffload.stats import quantile_interval

BODY_POINTS = 400
"""Points kept of a series below its tail, evenly spread over the ranks."""
TAIL_POINTS = 150
"""Slowest requests of a series that are always kept whole."""
BAND_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One request: where it stands among its phase, and what it was. Times are seconds."""

    sample: RequestSample
    rank: int
    """1 is the fastest of its phase."""
    n: int
    ttft_seconds: float
    begin_seconds: float
    """When it was sent, since the arm's first phase began."""
    block: int = 0
    """Which of the arm's blocks it belongs to, from 0."""
    blocks: int = 1
    """How many blocks the arm has."""
    seed: int = 0
    """Of the block's workload: with phase, session and turn it names the request in every arm."""

    @property
    def slower_share(self) -> float:
        """Share of requests that waited at least as long; never 0, so that it can be drawn on a log scale."""
        return (self.n - self.rank + 1) / self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The successful requests of one phase of one arm, fastest first."""

    arm: str
    phase: str
    arm_index: int
    phase_index: int
    points: tuple[Point, ...]
    failed: tuple[RequestSample, ...]

    @property
    def label(self) -> str:
        """What a legend calls it."""
        return f"{self.arm}, {self.phase}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The 95 % interval of one quantile. Seconds."""

    slower_share: float
    low: float
    high: float


def all_series(arms: Sequence[ReportArm]) -> list[Series]:
    """Return one series a phase and arm, in the order of the arms."""
    phases = list(dict.fromkeys(name for arm in arms for name in arm.phase_names))
    found = []
    for arm_index, arm in enumerate(arms):
        begins = _begins(arm)
        for name in arm.phase_names:
            requests = [
                (sample, block, begins[block, name])
                for block, measurement in enumerate(arm.blocks)
                for phase in measurement.phases
                if phase.name == name
                for sample in phase.samples
            ]
            found.append(
                Series(
                    arm=arm.name,
                    phase=one_line(name, 40),
                    arm_index=arm_index,
                    phase_index=phases.index(name),
                    points=_points(arm, requests),
                    failed=tuple(sample for sample, _, _ in requests if not sample.ok),
                )
            )
    return found


def _begins(arm: ReportArm) -> dict[tuple[int, str], float]:
    """When each phase of each block began: phases and blocks follow one another, without the pauses between them."""
    found, begin = {}, 0.0
    for block, measurement in enumerate(arm.blocks):
        for phase in measurement.phases:
            found[block, phase.name] = begin
            begin += phase.duration_seconds
    return found


def _points(arm: ReportArm, requests: Iterable[tuple[RequestSample, int, float]]) -> tuple[Point, ...]:
    timed = [(s.ttft_seconds, s, block, begin) for s, block, begin in requests if s.ok and s.ttft_seconds is not None]
    timed.sort(key=lambda entry: entry[0])
    return tuple(
        Point(
            sample=sample,
            rank=rank,
            n=len(timed),
            ttft_seconds=max(seconds, 1e-6),
            begin_seconds=begin + sample.sent_at_seconds,
            block=block,
            blocks=len(arm.blocks),
            seed=arm.blocks[block].workload.seed,
        )
        for rank, (seconds, sample, block, begin) in enumerate(timed, start=1)
    )


def thin(points: Sequence[Point]) -> list[Point]:
    """Return the slowest requests whole and an even choice of the others (by rank), fastest first."""
    if len(points) <= BODY_POINTS + TAIL_POINTS:
        return list(points)
    body, tail = points[:-TAIL_POINTS], points[-TAIL_POINTS:]
    step = (len(body) - 1) / (BODY_POINTS - 1)
    return [body[round(i * step)] for i in range(BODY_POINTS)] + list(tail)


def tail(points: Sequence[Point], limit: int) -> list[Point]:
    """Return the slowest hundredth, slowest first: at least 5 requests where there are as many, at most ``limit``."""
    count = min(limit, max(5, math.ceil(len(points) / 100)), len(points))
    return list(reversed(points[len(points) - count :]))


def bands(points: Sequence[Point]) -> list[Band]:
    """Return the order-statistic intervals of the quantiles that n can carry; none without the extra ``gate``."""
    times = [point.ttft_seconds for point in points]
    found = []
    for q in BAND_QUANTILES if times else ():
        try:
            interval = quantile_interval(times, q)
        except MissingExtraError:
            return []
        if interval.low is not None and interval.high is not None:
            found.append(Band(slower_share=1 - q, low=interval.low, high=interval.high))
    return found


def pairs(reference: Iterable[Series], other: Iterable[Series]) -> list[tuple[Point, Point]]:
    """Return the requests that both arms served (phase, seed, session, turn, occurrence), slowest of ``other`` last."""
    known: dict[tuple[str, int, int, int], list[Point]] = defaultdict(list)
    for series in reference:
        for point in _in_order(series):
            known[series.phase, point.seed, point.sample.session, point.sample.turn].append(point)
    found = []
    for series in other:
        for point in _in_order(series):
            waiting = known.get((series.phase, point.seed, point.sample.session, point.sample.turn))
            if waiting:
                found.append((waiting.pop(0), point))
    found.sort(key=lambda pair: pair[1].ttft_seconds)
    return found


def _in_order(series: Series) -> list[Point]:
    return sorted(series.points, key=lambda point: (point.block, point.sample.index))
