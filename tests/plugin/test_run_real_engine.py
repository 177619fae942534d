"""The pytest edge on real vLLM: the example suite, workers, and what is left after a run was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_kvoffload.engine import RunningServer, boot
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig

pytestmark = pytest.mark.engine

EXAMPLE = Path(__file__).parents[2] / "example_suite"
GONE_WITHIN_SECONDS = 10.0
TIERING = """
[connectors.tiering]
kind = "raw"
[connectors.tiering.kv_transfer_config]
kv_connector = "OffloadingConnector"
kv_role = "kv_both"
[connectors.tiering.kv_transfer_config.kv_connector_extra_config]
spec_name = "TieringOffloadingSpec"
cpu_bytes_to_use = 67108864
secondary_tiers = [{{ type = "fs", root_dir = "{disk}" }}]
[workload]
sessions = 40
prefix_tokens = 2048
"""


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that somebody started by hand: the plugin under test only knows its URL."""
    with boot(
        engine=EngineConfig(kind="cpu", num_gpu_blocks=80),
        model=ModelConfig(),
        connector=ConnectorConfig(name="native", kind="native", options={"size_gib": 1.0}),
        run_dir=tmp_path_factory.mktemp("by_hand"),
    ) as server:
        yield server


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A copy of the example suite, as a user would make one."""
    return Path(
        shutil.copytree(EXAMPLE, tmp_path / "suite", ignore=shutil.ignore_patterns(".kvoffload", "__pycache__"))
    )


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def boots(folder: Path) -> int:
    return len(list(folder.glob(".kvoffload/run-*/servers/*/server-*.status.json")))


def regions() -> set[str]:
    return {p.name for p in Path("/dev/shm").glob("vllm_offload_*")}


def test_the_example_suite_passes_and_boots_each_configuration_once(suite: Path) -> None:
    result = run(suite)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "5 passed" in result.stdout
    assert "= kvoffload =" in result.stdout
    assert boots(suite) == 3


def test_two_workers_share_one_server(suite: Path) -> None:
    result = run(suite, "-n", "2", "-k", "reached or same_tokens")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout
    assert boots(suite) == 1


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "Ctrl-C"])
def test_nothing_is_left_after_a_run_was_ended_in_the_middle(tmp_path: Path, end: signal.Signals) -> None:
    before = regions()
    (tmp_path / "kvoffload.toml").write_text(TIERING.format(disk=tmp_path / "disk"))
    (tmp_path / "test_long.py").write_text("def test_long(kvoffload_measurement): pass\n")
    output = tmp_path / "output.txt"
    with output.open("w") as sink:
        process = subprocess.Popen([sys.executable, "-m", "pytest"], cwd=tmp_path, stdout=sink, stderr=sink)
    deadline = time.monotonic() + 240
    while not list(tmp_path.glob(".kvoffload/run-*/servers/*/server.json")):
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.2)
    assert regions() - before, "the tiering spec keeps its region in /dev/shm: there should be one"
    time.sleep(1.0)  # well into the cold phase
    mine = psutil.Process(process.pid).children(recursive=True)
    assert len(mine) >= 4, "the guard, API server, engine core and worker were expected"
    os.kill(process.pid, end)
    process.wait(timeout=60)
    _, alive = psutil.wait_procs(mine, timeout=GONE_WITHIN_SECONDS)
    assert alive == []
    assert regions() - before == set()
    if end == signal.SIGINT:
        assert process.returncode == pytest.ExitCode.INTERRUPTED
        text = output.read_text()
        assert "cold (interrupted)" in text
        assert "tiering: not complete" in text


# The server that was started by hand holds the device until the end of this module: tests that boot come before.


def test_the_same_suite_runs_against_a_server_started_by_hand(suite: Path, by_hand: RunningServer) -> None:
    result = run(suite, "--kvoffload-url", f"native={by_hand.info.url}", "-k", "native_tier", "-rs")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed, 1 skipped" in result.stdout
    assert "no --kvoffload-url control=URL" in result.stdout
    assert boots(suite) == 0
    assert by_hand.alive()


def test_a_server_without_a_name_is_recognised_by_what_it_runs(suite: Path, by_hand: RunningServer) -> None:
    result = run(suite, "--kvoffload-url", by_hand.info.url, "-rs")
    assert "runs OffloadingConnector, not 'control' (recompute)" in result.stdout
    assert by_hand.alive()
