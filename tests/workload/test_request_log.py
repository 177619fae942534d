from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.workload.request_log import RequestLog, read_request_log
from pytest_kvoffload.workload.tokens import TokenPool

POOL = TokenPool(ids=tuple(range(10, 110)))


def read(tmp_path: Path, *entries: object, max_model_len: int | None = None) -> RequestLog:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(e if isinstance(e, str) else json.dumps(e) for e in entries), encoding="utf-8")
    return read_request_log(str(path), pool=POOL, max_model_len=max_model_len, default_output=8)


def test_ids_and_text_are_taken_as_they_are(tmp_path: Path) -> None:
    log = read(
        tmp_path, {"prompt_token_ids": [1, 2, 3], "max_tokens": 5}, {"prompt": "hello there"}, {"prompt": [4, 5]}
    )
    assert [r.prompt_token_ids for r in log.requests] == [(1, 2, 3), (), (4, 5)]
    assert [r.prompt_text for r in log.requests] == [None, "hello there", None]
    assert [r.output_tokens for r in log.requests] == [5, 8, 8]


def test_equal_prompts_are_one_session(tmp_path: Path) -> None:
    log = read(tmp_path, {"prompt": "a b"}, {"prompt": "c d"}, {"prompt": "a b"})
    assert [r.session for r in log.requests] == [0, 1, 0]


def test_hashes_become_equal_tokens_where_they_are_equal(tmp_path: Path) -> None:
    trace = [
        {"timestamp": 27482, "input_length": 700, "output_length": 3, "hash_ids": [46, 47]},
        {"timestamp": 30535, "input_length": 900, "output_length": 3, "hash_ids": [46, 48]},
    ]
    one, two = read(tmp_path, *trace).requests
    assert (len(one.prompt_token_ids), len(two.prompt_token_ids)) == (700, 900)
    assert one.prompt_token_ids[:512] == two.prompt_token_ids[:512]
    assert one.prompt_token_ids[512:700] != two.prompt_token_ids[512:700]
    assert one.arrival_seconds == 0.0
    assert two.arrival_seconds == pytest.approx(3.053)


def test_times_are_sorted_and_dropped_when_some_are_missing(tmp_path: Path) -> None:
    log = read(tmp_path, {"prompt": "b", "arrival_seconds": 9}, {"prompt": "a", "arrival_seconds": 4})
    assert [(r.prompt_text, r.arrival_seconds, r.index) for r in log.requests] == [("a", 0.0, 0), ("b", 5.0, 1)]
    log = read(tmp_path, {"prompt": "b", "arrival_seconds": 9}, {"prompt": "a"})
    assert [r.arrival_seconds for r in log.requests] == [None, None]


def test_requests_that_do_not_fit_are_left_out_with_a_note(tmp_path: Path) -> None:
    log = read(tmp_path, {"prompt_token_ids": [1] * 90}, {"prompt_token_ids": [1] * 100}, max_model_len=100)
    assert len(log.requests) == 1
    assert "1 requests of" in log.notes[0]
    assert "longer than max_model_len 100" in log.notes[0]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("not json", r"log.jsonl:2: not a request"),
        ("[1]", "expected an object, got list"),
        ("{}", "one of prompt_token_ids, prompt or hash_ids is needed"),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens must be at least 1, got 0"),
        ('{"input_length": 600, "hash_ids": [1]}', "1 hash_ids cover 512 of 600 tokens"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, text: str) -> None:
    with pytest.raises(WorkloadError, match=text):
        read(tmp_path, {"prompt": "ok"}, line)


def test_a_missing_file_and_an_unusable_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot read the request log"):
        read_request_log(str(tmp_path / "none"), pool=POOL, max_model_len=None, default_output=1)
    with pytest.raises(WorkloadError, match="no usable request"):
        read(tmp_path, {"prompt_token_ids": [1] * 200}, max_model_len=100)
