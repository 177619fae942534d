"""``kvoffload chaos``: the list, what is refused, the exit code, the table at any width."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from pytest_kvoffload.commands import chaos
from pytest_kvoffload.errors import ExitCode, MissingExtraError, UsageError
from pytest_kvoffload.faults import FAULTS, LEFT_OUT, Chaos, Fault
from pytest_kvoffload.faults.built_in import CONNECTORS
from pytest_kvoffload.faults.stage import Stage
from pytest_kvoffload.output.fault_table import END, print_faults
from pytest_kvoffload.records import FaultOutcome, FaultResult, FaultVerdict

DOCS = Path(__file__).parents[2] / "docs"


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    chaos.build_parser(parser)
    return chaos.run(parser.parse_args(words))


def result(verdict: FaultVerdict, outcome: FaultOutcome | None = "served", fault: str = "disk_full") -> FaultResult:
    return FaultResult(
        fault=fault,
        connector="lmcache-disk",
        kind="lmcache_mp",
        outcome=outcome,
        verdict=verdict,
        expected=("served",),
        reason=f"the reason of {fault}",
        requests=10,
        failed_requests=1,
        hit_rate_before=0.98,
        hit_rate=0.5,
        ttft_before_seconds=0.05,
        ttft_max_seconds=11.4,
        recovered=True,
    )


def test_the_list_names_every_fault_and_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == ExitCode.OK
    out = capsys.readouterr().out
    assert [fault.name for fault in FAULTS if fault.name not in out] == []
    assert LEFT_OUT in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--fault", "disk_ful"), "unknown fault 'disk_ful' (did you mean 'disk_full'?)"),
        (("--connector", "nativ"), "no connector 'nativ' (did you mean 'native'?)"),
        (("--expect", "disk_full=servd"), "(did you mean 'served'?)"),
        (("--expect", "disk_full"), "FAULT=OUTCOME[,OUTCOME]"),
        (("--expect", "disk_ful=served"), "did you mean 'disk_full'"),
        (("--expect", "fs:disk_ful=served"), "did you mean 'disk_full'"),
        (("--expect", "nativ:disk_full=served"), "no connector 'nativ' (did you mean 'native'?)"),
        (("--request-timeout", "0"), "above 0"),
    ],
)
def test_a_word_that_cannot_be_meant_is_refused(
    words: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        run(*words)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (("pass", "not-applicable"), ExitCode.OK),
        (("pass", "fail", "inconclusive"), ExitCode.FAILED),
        (("pass", "inconclusive"), ExitCode.INCONCLUSIVE),
        (("not-applicable",), ExitCode.INCONCLUSIVE),
        ((), ExitCode.INCONCLUSIVE),
    ],
)
def test_only_a_run_that_showed_something_passes(verdicts: tuple[FaultVerdict, ...], code: ExitCode) -> None:
    assert chaos._exit_code([result(verdict) for verdict in verdicts]) is code


def test_what_was_left_behind_fails_whatever_the_outcome() -> None:
    left = chaos._with_leftovers(result("pass"), ("/tmp/kvo-disk-1",))
    assert left.verdict == "fail"
    assert "left behind: /tmp/kvo-disk-1" in left.reason


def test_what_is_expected_of_one_connector_is_not_expected_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, tuple[FaultOutcome, ...]]] = []

    def look(chaos: Chaos, fault: Fault) -> FaultResult:
        asked.append((chaos.arm.connector.name, fault.expected))
        return result("pass", fault=fault.name)

    monkeypatch.setattr(Stage, "__enter__", lambda stage: stage)
    monkeypatch.setattr(Chaos, "run", look)
    monkeypatch.chdir(tmp_path)
    words = ["--fault", "worker_killed", "--no-progress", "--output", "out", "--connector", "native"]
    words += ["--connector", "fs", "--expect", "worker_killed=degraded", "--expect", "fs:worker_killed=hung,served"]
    assert run(*words) == ExitCode.OK
    assert asked == [("native", ("degraded",)), ("fs", ("hung", "served"))]


def test_what_was_seen_before_an_interruption_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(chaos: Chaos, fault: Fault) -> FaultResult:
        if fault.name != "worker_killed":
            return result("pass", fault=fault.name)
        os.kill(os.getpid(), signal.SIGTERM)  # as a CI's time limit does
        raise AssertionError("the signal came too late")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Stage, "__enter__", lambda stage: stage)
    monkeypatch.setattr(Chaos, "run", end)
    monkeypatch.chdir(tmp_path)
    words = ("--fault", "host_memory_corrupted", "--fault", "worker_killed", "--no-progress", "--output", "out")
    page = tmp_path / "page.md"
    page.write_text("the whole table of last night", encoding="utf-8")
    assert run("--connector", "native", *words, "--markdown", str(page)) == ExitCode.INTERRUPTED
    assert page.read_text(encoding="utf-8") == "the whole table of last night"
    written = json.loads((tmp_path / "out" / "chaos.json").read_text())
    assert (written["complete"], written["exit_code"]) == (False, ExitCode.INTERRUPTED)
    assert [row["fault"] for row in written["results"]] == ["host_memory_corrupted"]
    said = capsys.readouterr()
    assert "host_memory_corrupted" in said.out
    assert "page.md was left as it is (--merge " in said.err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_connector_without_its_stage_does_not_lose_what_others_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def enter(stage: Stage) -> Stage:
        if stage.original.name == "obj":
            raise MissingExtraError("faults of an object tier", "chaos", "moto")
        return stage

    monkeypatch.setattr(Stage, "__enter__", enter)
    monkeypatch.setattr(Chaos, "run", lambda chaos, fault: result("pass", fault=fault.name))
    monkeypatch.chdir(tmp_path)
    words = ("--fault", "worker_killed", "--no-progress", "--output", "out")
    assert run("--connector", "native", "--connector", "obj", *words) == ExitCode.INCONCLUSIVE
    written = json.loads((tmp_path / "out" / "chaos.json").read_text())
    assert [(row["fault"], row["verdict"]) for row in written["results"]] == [
        ("worker_killed", "pass"),
        ("worker_killed", "inconclusive"),
    ]
    assert "pytest-kvoffload[chaos]" in capsys.readouterr().out
    with pytest.raises(MissingExtraError):
        run("--connector", "obj", *words)


@pytest.mark.parametrize("width", [80, 120, 160])
def test_the_table_is_cut_at_no_width(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        result("fail", "failed_loudly", "object_store_forbidden"),
        result("inconclusive", None, "cache_server_restarted"),
        result("pass", "wrong_output", "disk_files_truncated"),
        result("not-applicable", None, "redis_gone"),
    ]
    console = Console(width=width, force_terminal=False)
    print_faults(results, console)
    out = capsys.readouterr().out
    assert "…" not in out
    for word in ("object_store_forbidden", "failed loudly", "wrong output", "inconclusive", "lmcache-disk"):
        assert word in out
    assert "lmcache-disk, object_store_forbidden: fail: the reason of object_store_forbidden" in out
    assert "lmcache-disk: does not apply: redis_gone (the reason of redis_gone)" in out
    assert ("TTFT max" in out) is (width >= 120)


def test_the_nightly_runs_every_connector_and_excuses_only_what_is_told(tmp_path: Path) -> None:
    said = tmp_path / "words"
    stand_in = tmp_path / "kvoffload"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\n', encoding="utf-8")
    stand_in.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([DOCS.parent / ".ci" / "faults"], env=env, check=True)
    command, *words = said.read_text(encoding="utf-8").splitlines()
    parser = argparse.ArgumentParser()
    chaos.build_parser(parser)
    args = parser.parse_args(words)
    assert command == "chaos"
    names = [connector.name for connector in CONNECTORS]
    assert args.connector == names
    page = (DOCS / "faults.md").read_text(encoding="utf-8")
    for (connector, fault), outcomes in chaos._expectations(args.expect).items():
        assert connector in names
        assert not {"hung", "wrong_output"} <= set(outcomes)
        assert f"`{fault}`" in page.split(END)[1], f"{fault}: an excuse that the page does not explain"


def test_the_page_names_every_outcome_and_every_fault_from_boot() -> None:
    page = (DOCS / "faults.md").read_text(encoding="utf-8")
    for outcome in ("served", "degraded", "failed loudly", "hung", "wrong output"):
        assert f"| {outcome} |" in page
    assert [fault.name for fault in FAULTS if fault.from_boot and f"`{fault.name}`" not in page] == []
