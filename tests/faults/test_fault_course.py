"""The course of a scenario, on a small but true server whose faults are staged."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

import pytest_kvoffload.faults.actions as actions
import pytest_kvoffload.faults.course as course
import pytest_kvoffload.probe.cache as cache
from pytest_kvoffload.engine.connectors import connector_argv
from pytest_kvoffload.errors import BootError, EngineError, ReadinessTimeoutError, UsageError
from pytest_kvoffload.faults import FAULTS, Chaos, find_faults, run_faults
from pytest_kvoffload.faults.actions import Begun, from_boot
from pytest_kvoffload.faults.built_in import CONNECTORS, for_chaos
from pytest_kvoffload.faults.stage import Stage
from pytest_kvoffload.records import (
    ConnectorConfig,
    EngineConfig,
    FaultResult,
    KVOffloadConfig,
    ModelConfig,
    ServerInfo,
    WorkloadConfig,
)
from pytest_kvoffload.session import Arm, RunSession

WORKLOAD = WorkloadConfig(prefix_tokens=64, suffix_tokens=8, output_tokens=4, sessions=12)
NATIVE = ConnectorConfig(name="native", kind="native", options={"size_gib": 1.0})


class Served:
    """What the scenarios need of a booted server, over a fake one."""

    def __init__(self, fake: FakeVLLM) -> None:
        self.fake, self.stops = fake, 0
        self.helpers: tuple[object, ...] = ()
        self.supervision, self.state = None, ""

    @property
    def info(self) -> ServerInfo:
        return dataclasses.replace(self.fake.info, pid=1)

    def check(self) -> None:
        self.fake.check()

    def alive(self) -> bool:
        return self.stops == 0

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVLLM]:
    monkeypatch.setattr(cache, "POLL_SECONDS", 0.02)
    with FakeVLLM(FakeConfig(tier_blocks=800)) as server:
        yield server


@pytest.fixture
def done() -> list[str]:
    """What the scenario's fault did."""
    return []


@pytest.fixture
def run(
    fake: FakeVLLM, done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Callable[[], None]], tuple[FaultResult, Served, list[str]]]:
    """Run one scenario whose begin is ``begin``; return its result, the server and what was done."""

    def scenario(name: str, begin: Callable[[], None]) -> tuple[FaultResult, Served, list[str]]:
        def on(fault: str, stage: Stage, server: object) -> Begun:
            done.append(f"begin {fault}")
            begin()
            return Begun(note=f"{fault} is on", end=lambda: done.append("end"), felt=lambda: True)

        served = Served(fake)
        session = RunSession(tmp_path)
        monkeypatch.setattr(course, "begin", on)
        monkeypatch.setattr(session, "server", lambda arm: served)
        arm = Arm(engine=EngineConfig(), model=ModelConfig(), connector=NATIVE)
        (fault,) = find_faults((name,))
        chaos = Chaos(session, arm, WORKLOAD, request_timeout_seconds=2.0)
        with chaos:
            (result,) = run_faults(chaos, (fault,))
        return result, served, done

    return scenario


Scenario = Callable[[str, Callable[[], None]], tuple[FaultResult, Served, list[str]]]


def test_a_harmless_fault_is_served_through_and_the_evidence_is_written(run: Scenario, tmp_path: Path) -> None:
    result, served, done = run("host_memory_corrupted", lambda: None)
    assert done == ["begin host_memory_corrupted", "end"]
    assert (result.outcome, result.recovered) == ("served", True)
    assert result.requests == 15, "12 sessions again, and 3 new ones"
    assert result.measurement is not None
    assert result.measurement.phase_names == ("cold", "restored", "fault", "recovered")
    assert result.notes == ("host_memory_corrupted is on",)
    written = json.loads((tmp_path / "faults" / "native-host_memory_corrupted.json").read_text())
    assert written["outcome"] == "served"
    assert served.stops > 0, "nothing is left running"


def test_wrong_tokens_after_a_load_are_seen(run: Scenario, fake: FakeVLLM) -> None:
    result, _, _ = run("host_memory_corrupted", lambda: setattr(fake.config, "wrong_after_load", True))
    assert (result.outcome, result.verdict) == ("wrong_output", "pass")


def test_a_server_that_does_not_answer_hangs_within_a_bound_and_the_fault_is_ended(
    run: Scenario, fake: FakeVLLM
) -> None:
    result, served, done = run("host_memory_corrupted", lambda: setattr(fake.config, "hang", True))
    assert done == ["begin host_memory_corrupted", "end"]
    assert (result.outcome, result.verdict) == ("hung", "fail")
    assert "did not come to an end within 6 s" in result.reason
    assert served.stops > 0


def test_a_fault_that_is_made_by_half_proves_nothing_and_its_server_is_not_used_again(run: Scenario) -> None:
    def no_return() -> None:
        raise EngineError("lmcache-server: port 1 on 127.0.0.1 is taken")

    result, served, _ = run("host_memory_corrupted", no_return)
    assert (result.outcome, result.verdict) == (None, "inconclusive")
    assert result.reason == "host_memory_corrupted did not begin: lmcache-server: port 1 on 127.0.0.1 is taken"
    assert served.stops == 2, "at once, and again at the end"


def test_an_interruption_waits_for_no_helper_to_come_back(
    run: Scenario, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    real = course._Watched.check

    def check(watched: course._Watched) -> None:
        if begun:
            raise KeyboardInterrupt
        real(watched)

    monkeypatch.setattr(course._Watched, "check", check)
    with pytest.raises(KeyboardInterrupt):
        run("host_memory_corrupted", lambda: begun.append(True))
    assert done == ["begin host_memory_corrupted"]


def test_a_death_is_loud_with_what_was_measured_until_then(run: Scenario, fake: FakeVLLM) -> None:
    result, _, done = run("worker_killed", fake.die)
    assert done[-1] == "end"
    assert (result.outcome, result.verdict) == ("failed_loudly", "pass")
    assert result.reason == "the server died: RuntimeError: staged death"
    assert result.measurement is not None
    assert not result.measurement.complete


def test_a_server_that_closes_its_port_before_it_ends_has_died(run: Scenario, fake: FakeVLLM) -> None:
    def close_then_end() -> None:
        fake.config.fail_every = 1

        def later() -> None:
            time.sleep(0.5)
            fake.stop()
            time.sleep(5.5)
            fake.dead = True

        threading.Thread(target=later, daemon=True).start()
        time.sleep(1.0)

    result, _, _ = run("worker_killed", close_then_end)
    assert (result.outcome, result.verdict) == ("failed_loudly", "pass"), result.reason
    assert "staged death" in result.reason


def test_what_does_not_apply_says_why_and_boots_nothing(tmp_path: Path) -> None:
    arm = Arm(engine=EngineConfig(), model=ModelConfig(), connector=NATIVE)
    with Chaos(RunSession(tmp_path), arm, WORKLOAD) as chaos:
        results = list(run_faults(chaos, find_faults(("disk_full", "redis_gone", "cache_server_killed"))))
    assert {result.verdict for result in results} == {"not-applicable"}
    assert "a connector of kind 'native' as configured has none" in results[0].reason
    assert chaos.left_behind() == ()
    assert not (tmp_path / "servers").exists()


@pytest.mark.parametrize("fault", ["disk_files_deleted", "disk_files_truncated", "disk_files_corrupted"])
def test_memory_above_a_broken_disk_does_not_serve_in_its_place(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeVLLM
) -> None:
    connector = next(connector for connector in CONNECTORS if connector.name == "lmcache-disk")
    forgotten: list[bool] = []
    with Stage(connector, small_host=True, directory=tmp_path) as stage:
        disk = stage.disk
        assert disk is not None
        (disk.path / "block").write_bytes(b"0123456789")

        def forget(info: ServerInfo, *, external: bool, **_: object) -> None:
            assert [path.read_bytes() for path in disk.files()] != [b"0123456789"], "the files are broken first"
            forgotten.append(external)

        monkeypatch.setattr(actions, "reset_prefix_cache", forget)
        begun = actions.begin(fault, stage, Served(fake))  # type: ignore[arg-type]
        assert forgotten == [True]
        assert begun.felt()


@pytest.mark.parametrize(("kind", "outcome"), [(BootError, "failed_loudly"), (ReadinessTimeoutError, "hung")])
def test_a_boot_that_goes_wrong_is_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BootError], outcome: str
) -> None:
    session, slow = RunSession(tmp_path), 7200.0

    def refuse(arm: Arm) -> None:
        assert arm.connector.options["cpu_bytes_to_use"] == 2**20
        assert arm.engine.boot_timeout_seconds == slow, "no healthy boot was seen that could say what is slow here"
        raise kind(cause="a cause", command="", log_path="", tail="")

    monkeypatch.setattr(session, "server", refuse)
    engine = EngineConfig(boot_timeout_seconds=slow)
    with Chaos(session, Arm(engine=engine, model=ModelConfig(), connector=NATIVE), WORKLOAD) as chaos:
        (result,) = run_faults(chaos, find_faults(("tier_exhausted",)))
    assert result.outcome == outcome
    assert "a cause" in result.reason


@pytest.mark.parametrize(("healthy", "limit"), [(10.0, 240.0), (100.0, 400.0), (5000.0, 7200.0)])
def test_a_boot_that_is_to_fail_gets_as_long_as_this_machine_needs(
    healthy: float, limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeVLLM
) -> None:
    session, limits = RunSession(tmp_path), []

    class Booted(Served):
        info = property(lambda self: dataclasses.replace(fake.info, pid=1, boot_seconds=healthy))

    def boot(arm: Arm) -> Served:
        limits.append(arm.engine.boot_timeout_seconds)
        if len(limits) > 1:
            raise BootError(cause="a cause", command="", log_path="", tail="")
        return Booted(fake)

    monkeypatch.setattr(session, "server", boot)
    monkeypatch.setattr(course, "begin", lambda *_: Begun(note="on", end=lambda: None))
    arm = Arm(engine=EngineConfig(boot_timeout_seconds=7200.0), model=ModelConfig(), connector=NATIVE)
    with Chaos(session, arm, WORKLOAD) as chaos:
        list(run_faults(chaos, find_faults(("host_memory_corrupted", "tier_exhausted"))))
    assert limits == [7200.0, limit]


def test_a_server_that_does_not_boot_healthy_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = RunSession(tmp_path)

    def refuse(arm: Arm) -> None:
        raise BootError(cause="a cause", command="", log_path="", tail="")

    monkeypatch.setattr(session, "server", refuse)
    with Chaos(session, Arm(engine=EngineConfig(), model=ModelConfig(), connector=NATIVE), WORKLOAD) as chaos:
        (result,) = run_faults(chaos, find_faults(("worker_killed",)))
    assert (result.outcome, result.verdict) == (None, "inconclusive")


def test_an_attached_server_is_never_broken(tmp_path: Path) -> None:
    arm = Arm(engine=EngineConfig(kind="attach", url="http://h:1"), model=ModelConfig(), connector=NATIVE)
    with pytest.raises(UsageError, match="servers and tiers of our own"):
        Chaos(RunSession(tmp_path), arm, WORKLOAD)


def test_storage_of_the_user_is_never_what_breaks(tmp_path: Path) -> None:
    tiers = [
        {"type": "fs", "root_dir": "/mine"},
        {"type": "obj", "store_config": {"bucket": "mine", "secret_key": "x"}},
    ]
    mine = ConnectorConfig(name="t", kind="tiering", options={"size_gib": 4, "secondary_tiers": tiers})
    with Stage(mine, small_host=True, directory=tmp_path) as stage:
        fs, obj = stage.connector.options["secondary_tiers"]
        assert stage.disk is not None
        assert stage.store is not None
        assert fs == {"type": "fs", "root_dir": str(stage.disk.path)}
        assert obj["store_config"]["endpoint_override"] == stage.store.endpoint
        assert set(obj["store_config"]) == {"bucket", "endpoint_override", "region", "scheme"}
        assert stage.connector.env["AWS_ACCESS_KEY_ID"] == "kvoffload-chaos", "a key of the user's is not used"
        assert "mine" not in json.dumps(stage.connector.options["secondary_tiers"])
        assert stage.connector.options["cpu_bytes_to_use"] == 4 * 2**20
        assert "size_gib" not in stage.connector.options
        where = stage.disk.path
    assert not where.exists()


@pytest.mark.parametrize("remote", [{"remote": "redis"}, {"remote_url": "rediss://:secret@mine:6379/3"}])
def test_a_redis_of_ours_stands_in_for_one_however_it_was_named(remote: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on this machine")
    options = {"max_local_cpu_size": 0.5, "local_cpu": False, **remote}
    mine = ConnectorConfig(name="r", kind="lmcache_inprocess", options=options)
    with Stage(mine, small_host=True, directory=tmp_path) as stage:
        applying = [fault.name for fault in FAULTS if not stage.refusal(fault)]
        assert applying == ["redis_gone", "redis_slow", "worker_killed"]
        assert stage.redis is not None
        database = "/3" if "remote_url" in remote else ""
        assert stage.connector.options["remote_url"] == f"redis://127.0.0.1:{stage.redis.port}{database}"
        argv = connector_argv(stage.connector, engine=EngineConfig(), server_version="0.32.0")
    assert [clear.action for clear in argv.clears] == ["delete", "redis_flush"], "every scenario begins with it empty"
    assert "secret" not in json.dumps(stage.connector.options)


@pytest.mark.parametrize(
    ("kind", "options", "moved"),
    [
        (
            "lmcache_mp",
            {"server": "external", "url": "tcp://mine:5555", "http_url": "http://mine:8080", "chunk_size": 512},
            {"l1_size_gb": 0.5, "chunk_size": 512},
        ),
        (
            "lmcache_inprocess",
            {"max_local_cpu_size": 1, "local_disk": "/mine", "max_local_disk_size": 2},
            {"max_local_cpu_size": 1, "local_disk": True, "max_local_disk_size": 2},
        ),
        (
            "lmcache_inprocess",
            {"max_local_cpu_size": 1, "remote_url": "lm://mine:65432"},
            {"max_local_cpu_size": 1, "remote": "lm"},
        ),
    ],
)
def test_an_lmcache_of_the_users_is_replaced_by_one_of_ours(
    kind: str, options: dict[str, object], moved: dict[str, object], tmp_path: Path
) -> None:
    with Stage(ConnectorConfig(name="l", kind=kind, options=options), small_host=True, directory=tmp_path) as stage:
        assert stage.connector.options == moved
        connector_argv(stage.connector, engine=EngineConfig(), server_version="0.32.0")
        killed = find_faults(("cache_server_killed",))[0]
        assert (stage.refusal(killed) == "") is (kind == "lmcache_mp")


def test_a_wrong_transfer_mode_is_wrong_on_a_gpu_too(tmp_path: Path) -> None:
    mine = ConnectorConfig(name="l", kind="lmcache_mp", options={"l1_size_gb": 1})
    with Stage(mine, small_host=True, directory=tmp_path) as stage:
        broken = from_boot("cache_server_wrong_mode", stage, stored_bytes=None)
    argv = connector_argv(broken, engine=EngineConfig(kind="local"), server_version="0.32.0")
    (helper,) = argv.helpers
    served = helper.command[helper.command.index("--supported-transfer-mode") + 1]
    extra = argv.kv_transfer_config["kv_connector_extra_config"] if argv.kv_transfer_config else {}
    assert (served, extra["lmcache.mp.mp_transfer_mode"]) == ("engine_driven", "lmcache_driven")


def test_without_a_file_there_are_connectors_and_a_small_workload() -> None:
    made = for_chaos(KVOffloadConfig())
    assert set(made.connectors) == {connector.name for connector in CONNECTORS}
    assert made.engine.num_gpu_blocks is not None
    mine = KVOffloadConfig(
        connectors={"native": NATIVE}, source="kvoffload.toml", workload=WorkloadConfig(prefix_tokens=512)
    )
    assert for_chaos(mine).workload == mine.workload
    assert for_chaos(mine).connectors == mine.connectors


@pytest.mark.parametrize("connector", CONNECTORS, ids=lambda connector: connector.name)
def test_what_is_booted_is_legal_with_and_without_each_fault(connector: ConnectorConfig, tmp_path: Path) -> None:
    engine = EngineConfig()
    with Stage(connector, small_host=True, directory=tmp_path) as stage:
        healthy = connector_argv(stage.connector, engine=engine, server_version="0.32.0")
        applying = [fault for fault in FAULTS if fault.from_boot and not stage.refusal(fault)]
        assert applying or connector.kind == "lmcache_inprocess"
        for fault in applying:
            broken = connector_argv(
                from_boot(fault.name, stage, stored_bytes=2**24), engine=engine, server_version="0.32.0"
            )
            assert broken.kv_transfer_config is not None
            differs = broken.kv_transfer_config != healthy.kv_transfer_config
            assert differs is (fault.name != "credentials_wrong"), fault.name
