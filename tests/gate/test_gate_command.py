"""``kvoffload gate`` and ``kvoffload baseline`` as commands: what they refuse, and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.cli import main
from pytest_kvoffload.session import RunSession

CONFIG = """
[engine]
kind = "attach"
url = "{url}"
[connectors.native]
kind = "native"
size_gib = 1
[workload]
prefix_tokens = 64
suffix_tokens = 8
output_tokens = 1
sessions = 12
[gate]
requests = {requests}
thresholds = ["external.hit_rate >= 0.5"]
"""


def configure(folder: Path, one: FakeVLLM, two: FakeVLLM, *, requests: int = 24) -> None:
    (folder / "kvoffload.toml").write_text(CONFIG.format(url=one.url, requests=requests))
    (folder / "old.toml").write_text(CONFIG.format(url=two.url, requests=requests))


GATE = ["gate", "--reference", "old.toml", "--output", "out", "--no-progress"]


@pytest.fixture
def servers() -> Iterator[tuple[FakeVLLM, FakeVLLM]]:
    with FakeVLLM(FakeConfig(tier_blocks=100_000)) as one, FakeVLLM(FakeConfig(tier_blocks=100_000)) as two:
        yield one, two


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_earlier_runs_measurements_are_never_taken_for_this_ones(
    folder: Path, servers: tuple[FakeVLLM, FakeVLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    """A measurement is taken once in a directory: named again, it would give the old verdict without a request."""
    configure(folder, *servers)
    assert main(GATE) == 0
    assert capsys.readouterr().err == "", "--no-progress says nothing while it runs"
    asked = [server.completions for server in servers]
    assert main(GATE) == 2
    assert [server.completions for server in servers] == asked
    said = capsys.readouterr().err
    assert "it holds measurements of an earlier run, which would be taken for this one's; name a new directory" in said
    assert main(["baseline", "update", "--output", "out", "--no-progress"]) == 2


def test_a_boot_that_failed_earlier_is_tried_again_in_a_new_directory_only(
    folder: Path, servers: tuple[FakeVLLM, FakeVLLM], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(folder, *servers)
    (folder / "out" / "failures").mkdir(parents=True)
    (folder / "out" / "failures" / "candidate-1.txt").write_text("it did not boot")
    assert main(GATE) == 2
    assert "it holds failures of an earlier run" in capsys.readouterr().err


def test_a_baseline_of_a_tier_that_never_served_is_not_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=0)) as one:
        configure(folder, one, one)
        assert main(["baseline", "update", "--no-progress"]) == 3
    assert "no baseline: the tier of baseline was never reached: 0 of" in capsys.readouterr().err
    assert not (folder / "kvoffload-baselines").exists()


def test_the_verdict_is_written_before_the_servers_stop(
    folder: Path, servers: tuple[FakeVLLM, FakeVLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is cancelled gets a second signal seconds after the first, while servers are still stopping."""

    def interrupted(self: RunSession) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunSession, "close", interrupted)
    configure(folder, *servers)
    assert main([*GATE, "--json", "elsewhere.json"]) == 130
    assert json.loads((folder / "out" / "verdict.json").read_text())["outcome"] == "pass"
    assert (folder / "elsewhere.json").exists()


def test_a_cancelled_job_ends_with_a_verdict_and_what_was_measured(folder: Path) -> None:
    """A job that is cancelled gets SIGTERM, not Ctrl-C."""
    config = FakeConfig(tier_blocks=100_000, seconds_per_token=0.0005)
    with FakeVLLM(config) as one, FakeVLLM(config) as two:
        configure(folder, one, two, requests=2400)
        gate = subprocess.Popen(
            [sys.executable, "-m", "pytest_kvoffload", *GATE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 120
        while len(list(folder.glob("out/measurements/*.json"))) < 4 and gate.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        gate.send_signal(signal.SIGTERM)
        out, err = gate.communicate(timeout=60)
    assert gate.returncode == 130, err
    assert "INCONCLUSIVE  complete: interrupted before a verdict was reached" in out
    verdict = json.loads((folder / "out" / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["exit_code"]) == ("inconclusive", 130)
    assert verdict["verdict"]["requests_per_arm"] >= 12
