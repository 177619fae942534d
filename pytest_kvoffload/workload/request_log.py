"""Replay of a user's own request log, one JSON object a line.

Each line gives the prompt in one of three ways:

``prompt_token_ids``    the ids themselves
``prompt``              text
``hash_ids``            with ``input_length``: hashes of 512-token blocks, as in the published Mooncake traces; equal
                        hashes become equal tokens, so the reuse of the trace is kept without its text

and may give ``max_tokens`` (or ``output_length``) and ``timestamp`` (milliseconds, as in those traces) or
``arrival_seconds``. Times are made relative to the earliest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.records import RequestSpec
from pytest_kvoffload.workload.tokens import TokenPool

HASH_BLOCK_TOKENS = 512
"""Tokens that one entry of ``hash_ids`` stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLog:
    """The requests of a log, and what had to be left out."""

    requests: tuple[RequestSpec, ...]
    notes: tuple[str, ...] = ()


def read_request_log(path: str, *, pool: TokenPool, max_model_len: int | None, default_output: int) -> RequestLog:
    """Read a JSONL request log.

    Args:
        path: the file.
        pool: tokens for ``hash_ids``.
        max_model_len: requests that do not fit are left out, with a note.
        default_output: output tokens of a line that does not say.

    Raises:
        WorkloadError: the file cannot be read, a line is not a request (its number is named), or none is usable.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"cannot read the request log {path}: {error}") from error
    requests: list[RequestSpec] = []
    sessions: dict[Any, int] = {}
    too_long = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            request = _request(entry, pool=pool, index=len(requests), default_output=default_output)
        except (ValueError, TypeError, KeyError) as error:
            raise WorkloadError(f"{path}:{number}: not a request: {error}") from error
        if max_model_len is not None and request.prompt_tokens + request.output_tokens > max_model_len:
            too_long += 1
            continue
        session = sessions.setdefault(request.prompt_token_ids or request.prompt_text, len(sessions))
        requests.append(replace(request, session=session))
    if not requests:
        raise WorkloadError(f"{path}: no usable request ({too_long} are longer than max_model_len {max_model_len})")
    notes = (f"{too_long} requests of {path} are longer than max_model_len {max_model_len} and were left out",)
    return RequestLog(requests=_from_zero(requests), notes=notes if too_long else ())


def _request(entry: object, *, pool: TokenPool, index: int, default_output: int) -> RequestSpec:
    if not isinstance(entry, dict):
        raise TypeError(f"expected an object, got {type(entry).__name__}")
    ids: tuple[int, ...] = ()
    text: str | None = None
    if "prompt_token_ids" in entry:
        ids = tuple(int(token) for token in entry["prompt_token_ids"])
    elif "hash_ids" in entry:
        ids = _ids_of_hashes(entry, pool)
    elif isinstance(entry.get("prompt"), str):
        text = entry["prompt"]
    elif isinstance(entry.get("prompt"), list):
        ids = tuple(int(token) for token in entry["prompt"])
    else:
        raise KeyError("one of prompt_token_ids, prompt or hash_ids is needed")
    if not ids and not text:
        raise ValueError("the prompt is empty")
    output = int(entry["max_tokens"] if "max_tokens" in entry else entry.get("output_length") or default_output)
    if output < 1:
        raise ValueError(f"max_tokens must be at least 1, got {output}")
    arrival = entry.get("arrival_seconds")
    if arrival is None and "timestamp" in entry:
        arrival = float(entry["timestamp"]) / 1000.0
    return RequestSpec(
        index=index,
        session=0,
        turn=0,
        prompt_token_ids=ids,
        prefix_tokens=0,
        output_tokens=output,
        arrival_seconds=None if arrival is None else float(arrival),
        prompt_text=text,
        # About four characters a token: only used to compare with limits, the server reports the real length.
        estimated_tokens=None if text is None else max(1, len(text) // 4),
    )


def _ids_of_hashes(entry: Mapping[str, Any], pool: TokenPool) -> tuple[int, ...]:
    if pool.text_only:
        raise ValueError("hash_ids need a server with /tokenize")
    length = int(entry["input_length"])
    ids: list[int] = []
    for block in entry["hash_ids"]:
        ids.extend(pool.draw(f"hash/{block}", HASH_BLOCK_TOKENS))
    if len(ids) < length:
        raise ValueError(f"{len(entry['hash_ids'])} hash_ids cover {len(ids)} of {length} tokens")
    return tuple(ids[:length])


def _from_zero(requests: list[RequestSpec]) -> tuple[RequestSpec, ...]:
    times = [request.arrival_seconds for request in requests if request.arrival_seconds is not None]
    if len(times) != len(requests):
        # A log that times only some of its requests cannot be replayed on a clock: it becomes a closed loop.
        return tuple(replace(request, arrival_seconds=None) for request in requests)
    first = min(times)
    timed = [replace(request, arrival_seconds=(request.arrival_seconds or 0.0) - first) for request in requests]
    ordered = sorted(timed, key=lambda request: request.arrival_seconds or 0.0)
    return tuple(replace(request, index=index) for index, request in enumerate(ordered))
