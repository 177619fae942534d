"""Servers and measurements of one run: what is shared, what is refused, what is written down."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.errors import EngineError, TierDegradedError
from pytest_kvoffload.probe import MeasurementDiedError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig, TierClear, WorkloadConfig
from pytest_kvoffload.session import Arm, RunSession, _refuse_degraded

WORKLOAD = WorkloadConfig(prefix_tokens=64, suffix_tokens=8, output_tokens=1)


def arm_of(server: FakeVLLM, **changes: object) -> Arm:
    arm = Arm(
        engine=EngineConfig(kind="attach", url=server.url),
        model=ModelConfig(),
        connector=ConnectorConfig(name="native/1", kind="native", options={"size_gib": 1.0}),
    )
    return dataclasses.replace(arm, **changes)  # type: ignore[arg-type]


def test_a_measurement_is_taken_once_and_another_boot_is_another_one(tmp_path: Path) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=800)) as server:
        session = RunSession(tmp_path)
        first = session.measure(arm_of(server), WORKLOAD)
        sent = server.completions
        assert session.measure(arm_of(server), WORKLOAD) == first
        assert RunSession(tmp_path).measure(arm_of(server), WORKLOAD) == first
        assert server.completions == sent
        session.measure(arm_of(server, boot=1), WORKLOAD)
        assert server.completions > sent
    found, problems = session.measurements()
    assert len(found) == 2
    assert problems == []


def test_the_key_is_a_safe_file_name_and_tells_arms_apart() -> None:
    arms = [
        Arm(
            engine=EngineConfig(),
            model=ModelConfig(),
            connector=ConnectorConfig(name=name, kind="recompute"),
            boot=boot,
        )
        for name in ("a/b", "a b")
        for boot in (0, 1)
    ]
    keys = {arm.key for arm in arms}
    assert len(keys) == 4
    assert all(set(key) <= set("abcdef0123456789-") for key in keys)


def test_a_file_that_cannot_be_read_is_named_not_raised(tmp_path: Path) -> None:
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements" / "x.json").write_text("{")
    found, problems = RunSession(tmp_path).measurements()
    assert found == []
    assert "x.json: not JSON" in problems[0]


def test_what_was_measured_before_a_death_is_written_down(tmp_path: Path) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=800, die_after=20)) as server:
        session = RunSession(tmp_path)
        with pytest.raises(MeasurementDiedError):
            session.measure(arm_of(server), WORKLOAD)
    (partial,) = session.measurements()[0]
    assert not partial.complete
    assert partial.phase("cold").samples


def test_a_boot_that_failed_is_not_tried_again_in_the_same_run(tmp_path: Path) -> None:
    model = ModelConfig(path=str(tmp_path / "nowhere"))
    arm = Arm(engine=EngineConfig(kind="local"), model=model, connector=ConnectorConfig(name="c", kind="recompute"))
    tried: list[Arm] = []
    session = RunSession(tmp_path, before_boot=tried.append)
    for again in (session, session, RunSession(tmp_path, before_boot=tried.append)):
        with pytest.raises(EngineError):
            again.measure(arm, WORKLOAD)
    assert len(tried) == 1


def test_a_server_without_its_tier_is_refused_by_its_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("LMCache is unhealthy, skipping lookup\nSystem will operate in degraded mode (recompute)\n")
    with FakeVLLM(FakeConfig(tier_blocks=800)) as server:
        measurement = RunSession(tmp_path).measure(arm_of(server), WORKLOAD)
    info = dataclasses.replace(measurement.server, log_path=str(log))
    with pytest.raises(TierDegradedError, match="runs without its tier: "):
        _refuse_degraded(dataclasses.replace(measurement, server=info))
    log.write_text("all is well\n")
    _refuse_degraded(dataclasses.replace(measurement, server=info))


def test_a_tier_that_cannot_be_emptied_gets_a_new_server_for_each_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=800)) as used, FakeVLLM(FakeConfig(tier_blocks=800)) as fresh:
        session = RunSession(tmp_path)
        session.measure(arm_of(used), WORKLOAD)
        arm = arm_of(used)
        clears = (TierClear(action="new_server", target="a disk"),)
        servers, stopped = [], []
        for fake in (used, fresh):
            server = RunSession(tmp_path / "other").server(arm_of(fake))
            server.info = dataclasses.replace(server.info, clears=clears)
            monkeypatch.setattr(server, "stop", lambda url=fake.url: stopped.append(url))
            servers.append(server)
        monkeypatch.setattr(session, "server", lambda arm: servers[len(stopped)])
        assert session._server_with_empty_tier(arm).info.url == fresh.url
        assert stopped == [used.url]
        assert session._server_with_empty_tier(arm).info.url == fresh.url
        assert stopped == [used.url], "a server that has served nothing is empty"
