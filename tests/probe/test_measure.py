from __future__ import annotations

import dataclasses
import json
import signal
import threading
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.assertions import MeterAssertionError, assert_offload_helps, assert_same_output
from pytest_kvoffload.errors import ServerDiedError, UsageError, WorkloadError
from pytest_kvoffload.metrics.query import total
from pytest_kvoffload.probe import (
    MeasurementDiedError,
    MeasurementInterrupted,
    Progress,
    RestartCallback,
    Server,
    measure,
)
from pytest_kvoffload.records import ConnectorConfig, Measurement, WorkloadConfig, measurement_from_json

WORKLOAD = WorkloadConfig(prefix_tokens=160, suffix_tokens=5, output_tokens=4)
NATIVE = ConnectorConfig(name="native", kind="native")
CONTROL = ConnectorConfig(name="control", kind="recompute")


def run(
    server: Server,
    *,
    connector: ConnectorConfig = NATIVE,
    artefacts_dir: Path | None = None,
    restart: RestartCallback | None = None,
    timeout: float = 10.0,
    **changes: object,
) -> Measurement:
    return measure(
        server,
        arm=connector.name,
        connector=connector,
        workload=dataclasses.replace(WORKLOAD, **changes),  # type: ignore[arg-type]
        artefacts_dir=artefacts_dir,
        restart=restart,
        request_timeout_seconds=timeout,
    )


def external(measurement: Measurement, phase: str) -> float:
    return total(measurement.phase(phase).delta, "vllm:external_prefix_cache_hits_total") or 0.0


def device(measurement: Measurement, phase: str) -> float:
    return total(measurement.phase(phase).delta, "vllm:prefix_cache_hits_total") or 0.0


def test_a_revisit_leaves_the_device_and_comes_back_from_the_tier() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        measurement = run(server)
        resets = list(server.resets)
    assert measurement.complete
    assert measurement.phase_names == ("cold", "resident", "restored")
    assert resets == [True, False]
    assert (external(measurement, "cold"), device(measurement, "cold")) == (0, 0)
    assert external(measurement, "resident") == 0
    assert device(measurement, "resident") == 160 * len(measurement.phase("resident").samples)
    assert (external(measurement, "restored"), device(measurement, "restored")) == (12 * 160, 0)
    stored = total(measurement.phase("cold").delta, "vllm:kv_offload_store_bytes_total")
    assert stored == 12 * 160 * 100
    assert measurement.plan.evicts
    assert measurement.notes == ()
    assert {"plugin", "python", "platform", "cpu", "gpu", "vllm"} <= set(measurement.environment)


def test_the_control_recomputes() -> None:
    with FakeVLLM() as server:
        measurement = run(server, connector=CONTROL)
    assert device(measurement, "restored") == 0
    assert total(measurement.phase("restored").delta, "vllm:external_prefix_cache_hits_total") == 0
    assert total(measurement.phase("restored").delta, "vllm:kv_offload_store_bytes_total") is None


def test_equal_prompts_in_both_arms() -> None:
    prompts = []
    for config, connector in ((FakeConfig(tier_blocks=400), NATIVE), (FakeConfig(), CONTROL)):
        with FakeVLLM(config) as server:
            run(server, connector=connector)
            prompts.append([body["prompt"] for body in server.requests])
    assert prompts[0] == prompts[1]


def test_it_is_written_and_read_back(tmp_path: Path) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        measurement = run(server, artefacts_dir=tmp_path / "deep" / "er")
    path = Path(measurement.artefacts["measurement"])
    assert path.name == "native.measurement.json"
    assert measurement_from_json(path.read_bytes()) == measurement
    assert json.loads(path.read_bytes())["schema_version"] == 1


def test_a_refused_reset_is_tried_again_and_noted() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400, refuse_resets=2)) as server:
        measurement = run(server)
    # On a busy machine tokens reach the client late, which has a note of its own.
    notes = [note for note in measurement.phase("cold").notes if not note.startswith("first tokens reached the client")]
    assert notes == ["the reset before this phase was refused 2 times, then done"]


def test_a_second_measurement_starts_cold_again() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        run(server)
        measurement = run(server)
    assert (external(measurement, "cold"), device(measurement, "cold")) == (0, 0)


def test_without_developer_mode_a_salt_keeps_it_cold_and_the_overflow_evicts() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400, dev_mode=False)) as server:
        run(server)
        measurement = run(server)
        salts = {body.get("cache_salt") for body in server.requests}
    assert len(salts) == 2
    assert None not in salts
    assert external(measurement, "cold") == 0
    assert external(measurement, "restored") == 12 * 160
    assert any("no developer mode" in note and "cache salt" in note for note in measurement.notes)
    assert any("not reset between phases" in note and ">= 40 blocks" in note for note in measurement.notes)


def test_a_tier_that_no_reset_empties_gets_a_salt() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        info = dataclasses.replace(server.info, kv_transfer_config={"kv_connector": "LMCacheMPConnector"})

        class Foreign:
            @property
            def info(self) -> object:
                return info

            def check(self) -> None:
                server.check()

        measurement = run(Foreign())  # type: ignore[arg-type]
        assert {body["cache_salt"][:10] for body in server.requests} == {"kvoffload-"}
    assert measurement.notes == (
        "this tier is not emptied by a reset: every request carries a fresh cache salt, so that nothing older can be a "
        "hit",
    )


def test_text_prompts_are_noted() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=2000, tokenize=False)) as server:
        measurement = run(server, prefix_tokens=320)
    assert any("prompts are text" in note for note in measurement.notes)
    assert external(measurement, "restored") > 0


def test_progress_tells_phase_count_hit_rate_and_median() -> None:
    seen: list[Progress] = []
    with FakeVLLM(FakeConfig(tier_blocks=400, seconds_per_token=2e-4)) as server:
        measure(server, arm="a", connector=NATIVE, workload=WORKLOAD, progress=seen.append)
    last = {progress.phase: progress for progress in seen}
    assert list(last) == ["cold", "resident", "restored"]
    assert (last["cold"].done, last["cold"].total, last["cold"].hit_rate) == (12, 12, 0.0)
    assert last["restored"].hit_rate == pytest.approx(160 / 165)
    assert (last["cold"].ttft_p50_seconds or 0) > (last["restored"].ttft_p50_seconds or 0)


def test_failed_requests_are_kept_and_noted() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400, fail_every=5)) as server:
        measurement = run(server)
    failed = [s for phase in measurement.phases for s in phase.samples if not s.ok]
    assert len(failed) == 5
    assert any(
        "requests failed, the first with: HTTP 500: staged failure" in n for n in measurement.phase("cold").notes
    )


def test_a_server_that_dies_is_reported_with_what_was_measured() -> None:
    with (
        FakeVLLM(FakeConfig(tier_blocks=400, die_after=20)) as server,
        pytest.raises(MeasurementDiedError, match="the server died: RuntimeError: staged death") as caught,
    ):
        run(server)
    partial = caught.value.partial
    assert isinstance(caught.value, ServerDiedError)
    assert not partial.complete
    assert partial.phase_names == ("cold", "resident", "restored")
    assert len(partial.phase("cold").samples) == 12
    assert any(note.startswith("incomplete: the server died during phase 'restored'") for note in partial.notes)


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400, seconds_per_token=1e-3)) as server:
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(1.4, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(MeasurementInterrupted) as caught:
            run(server, artefacts_dir=tmp_path, sessions=30)
    partial = caught.value.partial
    assert isinstance(caught.value, KeyboardInterrupt)
    assert not partial.complete
    (cold,) = partial.phases
    assert 0 < len(cold.samples) < 30
    assert all(sample.ok for sample in cold.samples)
    assert any(note.startswith("stopped after") for note in cold.notes)
    assert not measurement_from_json(Path(partial.artefacts["measurement"]).read_bytes()).complete


def test_a_cold_phase_that_was_not_cold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        run(server)
        # A reset that claims to empty the tier and does not.
        monkeypatch.setattr(server, "reset", lambda external: True)
        server.device.clear()
        with pytest.raises(WorkloadError, match=r"was not cold: 1920 of 1980 prompt tokens came from a tier"):
            run(server)


# ------------------------------------------------------------------------------------------------------ modes
def test_thrash_learns_the_tier_from_a_trial_store() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=60)) as server:
        measurement = run(server, mode="thrash")
    # 60 blocks of 16 tokens, 100 bytes a token.
    assert measurement.plan.tier_tokens == 960
    assert external(measurement, "restored") == 0
    assert total(measurement.phase("restored").delta, "vllm:kv_offload_store_bytes_total")


def test_resident_never_asks_the_tier() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        measurement = run(server, mode="resident")
    assert measurement.phase_names == ("cold", "resident")
    assert external(measurement, "resident") == 0
    assert device(measurement, "resident") == 160 * len(measurement.phase("resident").samples)


def test_no_reuse_hits_nothing() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=4000)) as server:
        measurement = run(server, mode="no_reuse")
    assert external(measurement, "restored") + device(measurement, "restored") == 0
    with pytest.raises(MeterAssertionError, match="reuse failed") as refused:
        assert_offload_helps(measurement)
    assert refused.value.outcome == "tier-not-exercised"
    # Unlike prompts are never taken for a wrong answer.
    with pytest.raises(MeterAssertionError, match="nothing was compared"):
        assert_same_output(measurement)


def test_burst_shares_one_prefix() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400, seconds_per_load=0.2)) as server:
        measurement = run(server, mode="burst")
    burst = measurement.phase("burst").samples
    assert len(burst) == 16
    assert external(measurement, "burst") >= 160
    assert server.peak > 1


def test_chat_continues_what_was_generated() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=4000)) as server:
        measurement = run(server, mode="chat", turns=3)
        bodies = server.requests
    cold, restored, replayed = (measurement.phase(name) for name in ("cold", "restored", "replayed"))
    n = measurement.plan.sessions
    first = cold.samples[0]
    second = bodies[n]["prompt"]
    assert second[:165] == bodies[0]["prompt"]
    assert tuple(second[165:169]) == first.output_token_ids
    assert [s.output_token_ids for s in replayed.samples] == [s.output_token_ids for s in restored.samples[-n:]]
    assert external(measurement, "restored") > 0


def test_restart_measures_on_the_new_server() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as first, FakeVLLM(FakeConfig(tier_blocks=400)) as second:
        # A tier that outlives the server.
        second.tier = first.tier
        measurement = run(first, mode="restart", restart=lambda: second)
        assert second.completions == 12
    assert external(measurement, "restored") == 12 * 160
    assert measurement.phase("restored").notes == ("the server was restarted before this phase",)


def test_restart_without_a_way_to_restart_is_a_usage_error() -> None:
    with FakeVLLM() as server, pytest.raises(UsageError, match="pass restart= to measure"):
        run(server, mode="restart")


def test_a_request_log_is_replayed_twice(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = [{"prompt_token_ids": [session + 10] * 200, "max_tokens": 2} for session in range(6)]
    log.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        measurement = run(server, mode="replay_log", request_log=str(log))
    assert len(measurement.phase("restored").samples) == 6
    assert external(measurement, "restored") == 6 * 192
    assert "6 distinct prompts" in measurement.plan.explanation


def test_a_reset_that_is_always_refused_ends_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import pytest_kvoffload.probe.cache as cache

    monkeypatch.setattr(cache.reset_prefix_cache, "__kwdefaults__", {"headers": None, "timeout_seconds": 0.3})
    with (
        FakeVLLM(FakeConfig(tier_blocks=400, refuse_always=True)) as server,
        pytest.raises(WorkloadError, match=r"/reset_prefix_cache refused \d+ times within 0.3 s.*blocks are held"),
    ):
        run(server)


def test_a_front_end_that_delivers_late_is_noted() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400, deliver_late_seconds=0.08)) as server:
        measurement = run(server)
    (note,) = measurement.phase("restored").notes
    assert "s after the engine had them" in note
    assert "the server's front end is short of CPU" in note
