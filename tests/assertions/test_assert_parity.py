from __future__ import annotations

import dataclasses

from factories import control, good, measurement, phase
from test_assert_common import outcome

from pytest_kvoffload.assertions import assert_same_output
from pytest_kvoffload.assertions.parity import first_difference
from pytest_kvoffload.records import Measurement

RIGHT = [(index, 7, 8, 9) for index in range(12)]


def outputs(restored: list[tuple[int, ...]], cold: list[tuple[int, ...]] | None = None, **how: str) -> Measurement:
    return measurement(
        phase("cold", [0.4] * len(RIGHT), outputs=cold or RIGHT),
        phase("restored", [0.1] * len(restored), outputs=restored),
    )


def wrong(*sessions: int) -> list[tuple[int, ...]]:
    return [(index, 7, 99, 9) if index in sessions else answer for index, answer in enumerate(RIGHT)]


def test_equal_answers_pass_within_a_measurement_and_across() -> None:
    assert_same_output(good())
    assert_same_output(good(), relative_to=control())


def test_the_first_differing_token_is_named() -> None:
    error = outcome(lambda: assert_same_output(outputs(wrong(4, 9))))
    assert error.outcome == "violated"
    text = str(error)
    assert "2 of 12 requests gave other tokens than in native/cold" in text
    assert "first in session 4 turn 0 at position 2, token 8 there and token 99 here" in text
    assert "4 (position 2), 9 (position 2)" in text
    assert "what came back from the tier is not what was stored" in text


def test_a_shorter_answer_differs_where_it_ends() -> None:
    short = [*RIGHT[:-1], (11, 7)]
    text = str(outcome(lambda: assert_same_output(outputs(short))))
    assert "at position 2, token 8 there and the end here" in text


def test_across_servers_what_differs_cold_already_is_left_out() -> None:
    # Two boots round differently in one request: no tier was involved.
    odd = outputs(wrong(4), cold=wrong(4))
    assert_same_output(odd, relative_to=control())
    text = str(outcome(lambda: assert_same_output(outputs(wrong(4, 5), cold=wrong(4)), relative_to=control())))
    assert "1 of 11 requests gave other tokens than in control/restored" in text
    assert "1 requests whose cold answers differ between the two servers already" in text


def test_a_connector_that_spoils_even_the_cold_pass_is_not_excused() -> None:
    spoilt = outputs(wrong(*range(12)), cold=wrong(*range(12)))
    error = outcome(lambda: assert_same_output(spoilt, relative_to=control()))
    assert error.outcome == "violated"
    assert "12 of 12 requests gave other tokens than the control already in phase 'cold'" in str(error)


def test_nothing_to_compare_is_not_a_pass() -> None:
    made = good()
    moved = tuple(dataclasses.replace(s, turn=s.turn + 1) for s in made.phase("restored").samples)
    restored = dataclasses.replace(made.phase("restored"), samples=moved)
    made = dataclasses.replace(made, phases=(made.phase("cold"), restored))
    error = outcome(lambda: assert_same_output(made))
    assert error.outcome == "too-few-samples"
    assert "nothing was compared" in str(error)
    assert outcome(lambda: assert_same_output(good(), against="warm")).outcome == "phase-missing"


def test_texts_are_compared_where_there_are_no_ids() -> None:
    one, two = good().phase("cold").samples[:2]
    a = dataclasses.replace(one, output_token_ids=(), output_text="hello")
    b = dataclasses.replace(two, output_text="help")
    difference = first_difference(a, b)
    assert difference is not None
    assert (difference.position, difference.tokens) == (3, ("character 'l'", "character 'p'"))
    assert first_difference(a, a) is None
