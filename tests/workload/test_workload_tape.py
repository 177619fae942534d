from __future__ import annotations

import json

import pytest

from pytest_kvoffload.records import RequestSpec
from pytest_kvoffload.workload.tape import Tape, read_tape, request_bytes, sample_of

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def token(*ids: int, text: str = "x") -> bytes:
    return chunk(b"data: " + json.dumps({"choices": [{"token_ids": list(ids), "text": text}]}).encode() + b"\n\n")


USAGE = {"choices": [], "usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 32}}}
END = chunk(b"data: " + json.dumps(USAGE).encode() + b"\n\n") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def test_the_head_is_not_the_first_token() -> None:
    answer = read_tape([(1.0, HEAD), (2.0, token(7)), (3.0, token(8)), (4.0, END)], closed=True)
    assert answer.error is None
    assert (answer.first_token_at, answer.last_token_at) == (2.0, 3.0)
    assert answer.token_ids == [7, 8]
    assert (answer.prompt_tokens, answer.cached_tokens) == (40, 32)


def test_an_event_has_the_time_of_the_piece_that_completed_it() -> None:
    whole = token(7)
    tape: Tape = [(1.0, HEAD + whole[:10]), (2.0, whole[10:25]), (3.0, whole[25:]), (4.0, END)]
    assert read_tape(tape, closed=True).first_token_at == 3.0


def test_however_the_bytes_are_cut_the_tokens_are_the_same() -> None:
    everything = HEAD + token(1, 2) + token(3) + END
    for size in (1, 2, 3, 7, 50):
        tape = [(float(at), everything[at : at + size]) for at in range(0, len(everything), size)]
        answer = read_tape(tape, closed=True)
        assert (answer.error, answer.token_ids) == (None, [1, 2, 3])


def test_an_event_without_tokens_is_not_the_first_token() -> None:
    empty = chunk(b'data: {"choices": [{"text": "", "token_ids": []}]}\n\n')
    assert read_tape([(1.0, HEAD), (2.0, empty), (3.0, token(5)), (4.0, END)], closed=True).first_token_at == 3.0


def test_text_is_enough_where_ids_are_not_given() -> None:
    only_text = chunk(b'data: {"choices": [{"text": "hi"}]}\n\n')
    answer = read_tape([(1.0, HEAD + only_text), (2.0, END)], closed=True)
    assert (answer.first_token_at, answer.text, answer.token_ids) == (1.0, "hi", [])


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([HEAD, token(1)], "the answer broke off"),
        ([HEAD + token(1) + b"0\r\n\r\n"], "the stream ended after 1 tokens without its end mark"),
        ([HEAD + END], "the stream ended without a token"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "not an HTTP answer"),
        ([HEAD + chunk(b"data: {broken\n\n") + END], "an event of the stream cannot be read: JSONDecodeError"),
        ([HEAD + chunk(b'data: {"error": {"message": "engine dead"}}\n\n') + END], "the server reports: engine dead"),
        (
            [b"HTTP/1.1 400 Bad\r\ncontent-length: 35\r\n\r\n" + b'{"error": {"message": "too long !"}}'[:35]],
            "HTTP 400",
        ),
        ([b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n"], r"HTTP 503: \(no body\)"),
    ],
)
def test_what_went_wrong_is_said(pieces: list[bytes], text: str) -> None:
    answer = read_tape([(float(at), piece) for at, piece in enumerate(pieces)], closed=True)
    assert answer.error is not None
    import re

    assert re.search(text, answer.error), answer.error


def test_the_request_asks_for_the_connection_to_be_closed() -> None:
    raw = request_bytes("/v1/completions", "h:1", {"Authorization": "Bearer k"}, b"{}")
    assert raw.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"\r\nConnection: close\r\n" in raw
    assert b"\r\nAuthorization: Bearer k\r\n" in raw
    assert raw.endswith(b"\r\n\r\n{}")


def test_a_sample_counts_from_the_phase_and_has_no_end_when_it_failed() -> None:
    spec = RequestSpec(index=3, session=1, turn=0, prompt_token_ids=(1,) * 40, prefix_tokens=32, output_tokens=2)
    good = read_tape([(12.0, HEAD), (12.5, token(7)), (13.0, token(8) + END)], closed=True)
    sample = sample_of(spec, good, phase="cold", origin=10.0, sent_at=11.0)
    assert (sample.ttft_seconds, sample.e2e_seconds, sample.ok) == (1.5, 2.0, True)
    broken = read_tape([(12.0, HEAD), (12.5, token(7))], closed=True)
    sample = sample_of(spec, broken, phase="cold", origin=10.0, sent_at=11.0)
    assert (sample.ok, sample.e2e_seconds, sample.prompt_tokens) == (False, None, 40)
