"""What came back on one connection, with the time of each piece, and how it is read afterwards.

While requests run, the client does nothing with what arrives but note the time: parsing 128 answers that arrive
together would delay the clock of the last. The tape is read when the answer has ended, by ``h11`` for HTTP and as
server-sent events for the stream; each event has the time of the piece that completed it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import h11

from pytest_kvoffload.records import RequestSample, RequestSpec

Tape = list[tuple[float, bytes]]
"""Pieces in order of arrival, each with the clock at arrival."""

_ERROR_LIMIT = 400


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a tape says. Times are on the tape's clock."""

    status: int | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    finished: bool = False


def request_bytes(target: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes of one POST that asks the server to close the connection after its answer."""
    connection = h11.Connection(our_role=h11.CLIENT)
    fields = [
        ("Host", host),
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        *headers.items(),
    ]
    head = connection.send(h11.Request(method="POST", target=target, headers=fields))
    return (head or b"") + (connection.send(h11.Data(data=body)) or b"")


def read_tape(tape: Tape, *, closed: bool) -> Answer:
    """Read a recorded answer.

    Args:
        tape: the pieces.
        closed: whether the connection has ended (which ends a body without a length).
    """
    answer = Answer()
    body = bytearray()
    pending = b""
    try:
        for at, data in _body_pieces(tape, answer, closed=closed):
            if answer.status != 200:
                body += data
                continue
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    _event(answer, line[5:].strip(), at)
    except h11.RemoteProtocolError as error:
        answer.error = f"the answer broke off: {error}" if answer.status else f"not an HTTP answer: {error}"
        return answer
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        answer.error = f"an event of the stream cannot be read: {type(error).__name__}: {error}"
        return answer
    if answer.status is not None and answer.status != 200:
        answer.error = f"HTTP {answer.status}: {_message(bytes(body))}"
    elif answer.error is None and not answer.finished:
        got = len(answer.token_ids)
        answer.error = (
            f"the stream ended after {got} tokens without its end mark"
            if answer.status
            else "no answer: connection closed"
        )
    elif answer.error is None and answer.first_token_at is None:
        answer.error = "the stream ended without a token"
    return answer


def _body_pieces(tape: Tape, answer: Answer, *, closed: bool) -> Iterator[tuple[float, bytes]]:
    connection = h11.Connection(our_role=h11.CLIENT)
    # h11 follows both sides of the exchange: tell it that a request was sent.
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Connection", "close")]))
    connection.send(h11.EndOfMessage())
    ends: Tape = [*tape, (tape[-1][0], b"")] if closed and tape else tape
    for at, piece in ends:
        connection.receive_data(piece)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                break
            if isinstance(event, h11.Response):
                answer.status = event.status_code
            elif isinstance(event, h11.Data):
                yield at, bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return


def _event(answer: Answer, payload: bytes, at: float) -> None:
    if payload == b"[DONE]":
        answer.finished = True
        return
    event: dict[str, Any] = json.loads(payload)
    if "error" in event:
        answer.error = f"the server reports: {_message(payload)}"
        return
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens = usage.get("prompt_tokens")
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens")
    for choice in event.get("choices", ()):
        ids = choice.get("token_ids")
        text = choice.get("text") or ""
        if not ids and not text:
            continue
        if answer.first_token_at is None:
            answer.first_token_at = at
        answer.last_token_at = at
        answer.token_ids.extend(ids or ())
        answer.text += text


def _message(body: bytes) -> str:
    try:
        decoded = json.loads(body)
        error = decoded.get("error", decoded)
        text = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        text = body.decode("utf-8", "replace").strip() or "(no body)"
    return text if len(text) <= _ERROR_LIMIT else text[:_ERROR_LIMIT] + " ..."


def sample_of(
    spec: RequestSpec, answer: Answer, *, phase: str, origin: float, sent_at: float, history_tokens: int = 0
) -> RequestSample:
    """Turn a read answer into the record that travels. Times become relative to ``origin``."""
    failed = answer.error is not None
    first, last = answer.first_token_at, answer.last_token_at
    return RequestSample(
        index=spec.index,
        session=spec.session,
        turn=spec.turn,
        phase=phase,
        prompt_tokens=answer.prompt_tokens or spec.prompt_tokens + history_tokens,
        prefix_tokens=spec.prefix_tokens,
        sent_at_seconds=sent_at - origin,
        first_token_at_seconds=None if first is None else first - origin,
        last_token_at_seconds=None if failed or last is None else last - origin,
        output_token_ids=tuple(answer.token_ids),
        cached_tokens=answer.cached_tokens,
        status=answer.status,
        error=answer.error,
        output_text=answer.text or None,
    )
