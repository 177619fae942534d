"""The table's "same output" says what the assertion would: a server without token ids is compared by text."""

from __future__ import annotations

from pytest_kvoffload.output.rows import same_output
from pytest_kvoffload.records import RequestSample


def answer(*, ids: tuple[int, ...] = (), text: str | None = None) -> RequestSample:
    return RequestSample(
        index=0,
        session=0,
        turn=0,
        phase="cold",
        prompt_tokens=8,
        prefix_tokens=4,
        sent_at_seconds=0.0,
        first_token_at_seconds=0.1,
        last_token_at_seconds=0.2,
        output_token_ids=ids,
        output_text=text,
    )


def test_token_ids_are_compared() -> None:
    assert same_output([answer(ids=(1, 2))], [answer(ids=(1, 2))]) == (1, 1)
    assert same_output([answer(ids=(1, 2))], [answer(ids=(1, 3))]) == (0, 1)


def test_without_token_ids_the_text_is_compared() -> None:
    assert same_output([answer(text="ab")], [answer(text="ab")]) == (1, 1)
    assert same_output([answer(text="ab")], [answer(text="ac")]) == (0, 1)


def test_answers_without_any_output_are_not_called_the_same() -> None:
    assert same_output([answer()], [answer()]) == (0, 0)
