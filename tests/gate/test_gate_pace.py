"""How far a gate run is: what it tells, and in how many words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_kvoffload.gate.pace import Pace, Place
from pytest_kvoffload.output.progress import phase_text, place_text
from pytest_kvoffload.probe import Progress

PLACE = Place(arm="candidate", block=5, blocks=12, done=80, requests=168, seconds_left=130.0)
PHASE = Progress(
    phase="restored",
    done=7,
    total=14,
    hit_rate=0.987,
    ttft_p50_seconds=0.0284,
    requests_per_second=3.14159,
    arm="candidate",
)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (PLACE, "block 5 of 12, candidate, 80 of 168 requests, at most 2 min left"),
        (Place(arm="reference", block=1), "block 1, reference"),
        (Place(arm="reference", block=None), "warm-up, reference"),
        (
            Place(arm="boot 2 of 4", block=3, blocks=8, done=28, requests=112, seconds_left=42.4),
            "block 3 of 8, boot 2 of 4, 28 of 112 requests, at most 42 s left",
        ),
    ],
)
def test_a_place_in_words(place: Place, text: str) -> None:
    assert place_text(place) == text


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (
            None,
            "block 5 of 12, candidate, 80 of 168 requests, at most 2 min left, restored: 7/14, 3.14/s, hit rate 0.99, "
            "TTFT p50 28.4 ms",
        ),
        (105, "block 5 of 12, candidate, 80 of 168 requests, at most 2 min left, restored: 7/14, TTFT p50 28.4 ms"),
        (80, "block 5 of 12, candidate, 80 of 168 requests, at most 2 min left, restored: 7/14"),
        (60, "block 5/12 candidate 80/168, restored: 7/14"),
        (30, "block 5/12 candidate 80/168"),
    ],
)
def test_a_phase_and_its_place_in_as_many_words_as_fit(width: int | None, text: str) -> None:
    assert phase_text(PHASE, width=width, place=PLACE) == text


def _clock(*ticks: float) -> Iterator[float]:
    yield from ticks


def test_what_is_left_is_told_by_boots_and_turns_so_far() -> None:
    ticks = _clock(0, 60, 60, 70, 70, 82)
    pace = Pace(clock=lambda: next(ticks))
    pace.expect(turns=10, boots=2)
    assert pace.seconds_left is None
    with pace.boot():
        pass
    with pace.turn():
        pass
    assert pace.seconds_left == 9 * 10 + 60
    with pace.turn():
        pass
    assert pace.seconds_left == 8 * 11 + 60


def test_a_turn_that_fails_tells_nothing_of_the_pace() -> None:
    ticks = _clock(0, 5, 9)
    pace = Pace(clock=lambda: next(ticks))
    pace.expect(turns=3, boots=0)
    with pytest.raises(KeyError), pace.turn():
        raise KeyError
    assert pace.seconds_left is None
