"""Faults on real vLLM: a disk tier on one booted server, its engine killed at the end; the host tier on another.

The whole table takes too long for every change: ``kvoffload chaos --markdown docs/faults.md`` makes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_kvoffload import assert_recovers_within, assert_requests_succeed
from pytest_kvoffload.faults import Chaos, find_faults, run_faults
from pytest_kvoffload.faults.built_in import CONNECTORS, for_chaos
from pytest_kvoffload.faults.janitor import is_mount
from pytest_kvoffload.records import FaultResult, KVOffloadConfig, to_json
from pytest_kvoffload.session import Arm, RunSession

pytestmark = pytest.mark.engine
FAULTS = ("disk_full", "disk_files_deleted", "disk_files_corrupted", "worker_killed")
PLANTED = ("hf_plantedTokenValue", "planted-redis-pw", "planted/Secret+Key==")


@dataclasses.dataclass(frozen=True)
class Ran:
    """What the scenarios of the module's one server gave."""

    results: Mapping[str, FaultResult]
    left: tuple[str, ...]
    run_dir: Path
    disk: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    run_dir = tmp_path_factory.mktemp("faults")
    made = for_chaos(KVOffloadConfig())
    connector = next(connector for connector in CONNECTORS if connector.name == "fs")
    # vLLM prints its configuration, unknown keys and all.
    planted = {"secret_key": PLANTED[2], "remote": f"redis://user:{PLANTED[1]}@127.0.0.1:1"}
    connector = dataclasses.replace(
        connector, options={**connector.options, "extra_config": planted}, env={"HF_TOKEN": PLANTED[0]}
    )
    arm = Arm(engine=made.engine, model=made.model, connector=connector)
    session = RunSession(run_dir)
    chaos = Chaos(session, arm, made.workload)
    try:
        with chaos:
            results = {result.fault: result for result in run_faults(chaos, find_faults(FAULTS))}
            assert chaos.stage.disk is not None
            disk = chaos.stage.disk.path
    finally:
        session.close()
    return Ran(results=results, left=chaos.left_behind(), run_dir=run_dir, disk=disk)


def test_a_corrupted_file_is_caught_by_its_output(ran: Ran) -> None:
    result = ran.results["disk_files_corrupted"]
    assert (result.outcome, result.verdict) == ("wrong_output", "pass"), result.reason
    assert result.hit_rate_before is not None
    assert result.hit_rate_before > 0.9


def test_a_disk_tier_that_is_full_or_emptied_stops_no_request(ran: Ran) -> None:
    for name in ("disk_full", "disk_files_deleted"):
        result = ran.results[name]
        if result.verdict == "not-applicable":
            assert "mount" in result.reason
            continue
        assert result.outcome in ("served", "degraded"), result.reason
        assert result.measurement is not None
        assert_requests_succeed(result.measurement, phase="fault")
        assert_requests_succeed(result.measurement, phase="recovered")
    assert ran.results["disk_files_deleted"].hit_rate != ran.results["disk_files_deleted"].hit_rate_before
    full = ran.results["disk_full"].measurement
    if full is not None:
        assert_recovers_within(full, requests=0)


def test_a_killed_engine_fails_loudly_and_by_name(ran: Ran) -> None:
    result = ran.results["worker_killed"]
    assert (result.outcome, result.verdict) == ("failed_loudly", "pass"), result.reason
    assert "the server died" in result.reason


def test_nothing_is_left_and_no_secret_is_told(ran: Ran) -> None:
    assert ran.left == ()
    assert not ran.disk.exists()
    assert not is_mount(str(ran.disk))
    logs = list(ran.run_dir.rglob("server-*.log"))
    assert any("***" in log.read_text(encoding="utf-8", errors="replace") for log in logs)
    for path in ran.run_dir.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            assert [word for word in PLANTED if word.encode() in raw] == [], path
    for result in ran.results.values():
        assert [word for word in PLANTED if word.encode() in to_json(result)] == []


def test_corrupted_host_memory_is_caught_by_its_output(tmp_path: Path) -> None:
    made = for_chaos(KVOffloadConfig())
    arm = Arm(engine=made.engine, model=made.model, connector=made.connectors["native"])
    session = RunSession(tmp_path)
    chaos = Chaos(session, arm, made.workload)
    try:
        with chaos:
            (result,) = run_faults(chaos, find_faults(("host_memory_corrupted",)))
    finally:
        session.close()
    if result.verdict == "not-applicable":
        pytest.skip(result.reason)  # this process may not write another one's memory
    assert (result.outcome, result.verdict) == ("wrong_output", "pass"), result.reason
    assert chaos.left_behind() == ()
