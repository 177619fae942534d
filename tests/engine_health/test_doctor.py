"""``kvoffload doctor``: table, JSON, exit codes, leaks and the reading of a log."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_kvoffload.cli import main
from pytest_kvoffload.engine.shm import leaked_regions

CONFIG = """
[engine]
kind = "cpu"
python = "/bin/true"

[connectors.control]
kind = "recompute"

[connectors.tiered]
kind = "tiering"
size_gib = 0.001
secondary_tiers = [{type = "fs", root_dir = "ROOT"}]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("pytest_kvoffload.engine.preflight.check_interpreter", lambda *args, **kwargs: ())
    path = tmp_path / "kvoffload.toml"
    path.write_text(CONFIG.replace("ROOT", str(tmp_path / "kv")))
    return path


@pytest.fixture
def leak() -> Iterator[Path]:
    """A region in the real /dev/shm that nobody owns."""
    path = Path("/dev/shm") / f"vllm_offload_doctor-test-{os.getpid()}.mmap"
    path.write_bytes(b"\1" * 4096)
    os.utime(path, (time.time() - 600,) * 2)
    yield path
    path.unlink(missing_ok=True)


def test_a_good_machine_is_a_table_and_zero(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("all connectors:\n")
    assert "\ntiered:\n" in out
    assert f"tier directory {config.parent}/kv" in out
    assert out.splitlines()[-1].startswith("0 failed, ")


def test_a_used_port_is_one_failure(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["doctor", "--config", str(config), "--port", str(port), "--connector", "control"]) == 1
    out = capsys.readouterr().out
    assert f"  FAIL  port {port}" in out
    assert "        what to do  end that process, or leave the port to the kernel" in out
    assert "1 failed" in out.splitlines()[-1]


def test_json_has_every_field(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", str(config), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema_version"], data["ok"], data["config"]) == (1, True, str(config))
    assert {entry["connector"] for entry in data["checks"]} >= {None, "tiered"}
    assert all(set(entry["check"]) == {"name", "status", "saw", "needed", "remedy"} for entry in data["checks"])


def test_a_leak_is_shown_then_removed(
    config: Path, leak: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = leaked_regions
    # The machine may have leaks of its own, which a test must not touch.
    own = lambda: tuple(region for region in found() if region.path == leak)  # noqa: E731
    monkeypatch.setattr("pytest_kvoffload.engine.shm.leaked_regions", own)
    assert main(["doctor", "--config", str(config)]) == 0
    assert leak.name in capsys.readouterr().out
    assert main(["doctor", "--config", str(config), "--fix-leaks"]) == 0
    assert f"removed {leak}\n" in capsys.readouterr().out
    assert not leak.exists()


def test_an_unknown_connector_is_a_usage_error(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", str(config), "--connector", "teired"]) == 2
    assert "no connector 'teired' (did you mean 'tiered'?); configured: control, tiered" in capsys.readouterr().err


def test_a_log_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text("api_server.py: error: unrecognized arguments: --swap-space\n")
    assert main(["doctor", "--log", str(log)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "arguments: this vLLM does not know the arguments --swap-space"
    assert out[1].startswith("what to do: ")
    assert out[-1] == "  api_server.py: error: unrecognized arguments: --swap-space"
    assert main(["doctor", "--log", str(log), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["diagnosis"]["cls"] == "arguments"


def test_the_exit_code_of_a_silent_death_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text("loading\n")
    assert main(["doctor", "--log", str(log), "--exit-code", "137"]) == 1
    assert capsys.readouterr().out.startswith("host-memory: ")


def test_a_log_that_is_not_there_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--log", str(tmp_path / "no.log")]) == 2
    assert "cannot read the log" in capsys.readouterr().err
