from __future__ import annotations

import gc
import sys

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.records import RequestSample, RequestSpec
from pytest_kvoffload.workload.client import Drive, Target
from pytest_kvoffload.workload.plan import PlannedPhase


def specs(count: int, **changes: object) -> tuple[RequestSpec, ...]:
    return tuple(
        RequestSpec(
            index=index,
            session=index,
            turn=0,
            prompt_token_ids=tuple(range(index, index + 40)),
            prefix_tokens=32,
            output_tokens=4,
            **changes,  # type: ignore[arg-type]
        )
        for index in range(count)
    )


def drive(
    server: FakeVLLM, requests: tuple[RequestSpec, ...], *, concurrency: int = 1, timeout: float = 10.0
) -> tuple[RequestSample, ...]:
    one = Drive(
        PlannedPhase(name="cold", requests=requests, preparation="none", concurrency=concurrency),
        Target(url=server.url, model="fake-model", timeout_seconds=timeout),
    )
    one.run()
    return one.samples()


def test_samples_come_in_order_with_everything_that_was_reported() -> None:
    with FakeVLLM() as server:
        samples = drive(server, specs(6), concurrency=3)
        again = drive(server, specs(6), concurrency=3)
    assert [sample.index for sample in samples] == list(range(6))
    assert all(sample.ok and sample.status == 200 and len(sample.output_token_ids) == 4 for sample in samples)
    assert {sample.prompt_tokens for sample in samples} == {40}
    assert {sample.cached_tokens for sample in samples} == {0}
    assert {sample.cached_tokens for sample in again} == {32}
    assert [a.output_token_ids for a in samples] == [b.output_token_ids for b in again]


def test_the_request_is_greedy_seeded_and_of_fixed_length() -> None:
    with FakeVLLM() as server:
        drive(server, specs(1, cache_salt="pepper"))
        (body,) = server.requests
    assert body["prompt"] == list(range(40))
    wanted = {
        "model": "fake-model",
        "temperature": 0,
        "seed": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "max_tokens": 4,
        "cache_salt": "pepper",
        "stream_options": {"include_usage": True},
    }
    assert {key: body[key] for key in wanted} == wanted


def test_a_closed_loop_never_runs_more_than_its_concurrency() -> None:
    with FakeVLLM(FakeConfig(seconds_per_token=0.001)) as server:
        samples = drive(server, specs(12), concurrency=3)
    assert len(samples) == 12
    assert server.peak == 3


def test_open_arrivals_are_kept_whatever_the_server_does() -> None:
    requests = tuple(
        RequestSpec(
            index=index,
            session=index,
            turn=0,
            prompt_token_ids=tuple(range(40)),
            prefix_tokens=32,
            output_tokens=2,
            arrival_seconds=0.05 * index,
        )
        for index in range(4)
    )
    with FakeVLLM(FakeConfig(seconds_per_output_token=0.2)) as server:
        samples = drive(server, requests, concurrency=1)
    for sample, request in zip(samples, requests, strict=True):
        assert sample.sent_at_seconds >= (request.arrival_seconds or 0.0)
    # With a closed loop of one the fourth would have waited for three answers of 0.4 s.
    assert samples[3].sent_at_seconds < 0.9


def test_failures_are_samples_and_not_exceptions() -> None:
    with FakeVLLM(FakeConfig(fail_every=2)) as server:
        samples = drive(server, specs(4))
    assert [sample.ok for sample in samples] == [True, False, True, False]
    assert samples[1].error == "HTTP 500: staged failure"
    assert samples[1].status == 500
    assert samples[1].ttft_seconds is None


def test_a_stream_that_breaks_off_is_a_failure() -> None:
    with FakeVLLM(FakeConfig(break_every=1)) as server:
        (sample,) = drive(server, specs(1))
    assert not sample.ok
    assert "broke off" in (sample.error or "")


def test_a_request_that_takes_too_long_is_given_up() -> None:
    with FakeVLLM(FakeConfig(hang=True)) as server:
        (sample,) = drive(server, specs(1), timeout=0.3)
    assert sample.error == "no complete answer within 0.3 s"


def test_nobody_listening_is_said_in_the_sample() -> None:
    with FakeVLLM() as server:
        pass
    (sample,) = drive(server, specs(1))
    assert "ConnectionRefusedError" in (sample.error or "")


def test_ids_are_not_needed() -> None:
    with FakeVLLM(FakeConfig(token_ids=False, prompt_details=False)) as server:
        (sample,) = drive(server, specs(1))
    assert sample.ok
    assert sample.output_token_ids == ()
    assert len(sample.output_text or "") == 4
    assert sample.cached_tokens is None


def test_what_the_callback_raises_stops_the_phase_and_keeps_what_ended() -> None:
    with FakeVLLM(FakeConfig(seconds_per_output_token=0.02)) as server:
        phase = PlannedPhase(name="cold", requests=specs(200), preparation="none", concurrency=1)
        one = Drive(phase, Target(url=server.url, model="fake-model"))

        def stop() -> None:
            if len(one.samples()) >= 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            one.run(stop)
        samples = one.samples()
    assert 2 <= len(samples) < 200
    assert all(sample.ok for sample in samples)


def test_the_interpreter_is_left_as_it_was() -> None:
    before = (gc.isenabled(), sys.getswitchinterval())
    with FakeVLLM() as server:
        drive(server, specs(2))
    assert (gc.isenabled(), sys.getswitchinterval()) == before
    assert gc.get_freeze_count() == 0


def test_a_chat_turn_sends_the_history_that_was_generated() -> None:
    first = specs(1)
    second = (
        RequestSpec(
            index=1, session=0, turn=1, prompt_token_ids=(1, 2, 3), prefix_tokens=32, output_tokens=4, follows=0
        ),
    )
    with FakeVLLM() as server:
        samples = drive(server, first + second, concurrency=2)
        bodies = server.requests
    assert bodies[1]["prompt"] == [*range(40), *samples[0].output_token_ids, 1, 2, 3]
    assert samples[1].prompt_tokens == 47


def test_a_chat_turn_without_a_history_is_not_sent() -> None:
    orphan = (
        RequestSpec(
            index=1, session=0, turn=1, prompt_token_ids=(1, 2, 3), prefix_tokens=32, output_tokens=4, follows=0
        ),
    )
    with FakeVLLM() as server:
        (sample,) = drive(server, orphan)
        assert server.completions == 0
    assert sample.error == "not sent: request 0, whose answer it continues, failed"


def test_only_http_urls_are_driven() -> None:
    phase = PlannedPhase(name="cold", requests=(), preparation="none", concurrency=1)
    with pytest.raises(WorkloadError, match="not an http"):
        Drive(phase, Target(url="ftp://x", model="m"))


def test_a_server_that_keeps_the_connection_open_is_not_waited_for() -> None:
    with FakeVLLM(FakeConfig(keep_open=True)) as server:
        samples = drive(server, specs(3), timeout=5.0)
    assert all(sample.ok for sample in samples)
    assert max(sample.e2e_seconds or 9 for sample in samples) < 4.0
