"""Versions, imports and GPUs of the engine, the whole preflight, and the refusal."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from pytest_kvoffload.engine.preflight import (
    INSIST_VARIABLE,
    Check,
    PreflightReport,
    SystemPaths,
    check_interpreter,
    preflight,
    refuse,
)
from pytest_kvoffload.engine.preflight import packages as packages_module
from pytest_kvoffload.engine.preflight.gpu import check_gpu
from pytest_kvoffload.engine.preflight.packages import check_nixl_telemetry, check_packages
from pytest_kvoffload.errors import ConfigError, ExitCode, PreflightError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig

GIB = 2**30


def fake_packages(folder: Path, **modules: str) -> dict[str, str]:
    """Lay modules and the metadata of their distributions on a path of their own; return the environment for it."""
    for name, source in modules.items():
        package = folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(source)
        if name == "transformers":
            (package / "image_utils.py").write_text(source)
        info = folder / f"{name}-1.2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    return {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def named(checks: tuple[Check, ...], name: str) -> Check:
    return PreflightReport(checks=checks).named(name)


def test_versions_and_imports_are_reported(tmp_path: Path) -> None:
    env = fake_packages(tmp_path, vllm="", torch="", transformers="")
    checks = check_packages(None, env=env)
    assert named(checks, "versions").status == "ok"
    assert "vllm 1.2.3, torch 1.2.3" in named(checks, "versions").saw
    assert named(checks, "import vllm").saw == "loads (1.2.3)"
    assert named(checks, "import vllm._C").status == "fail"  # these have no compiled part


def test_a_broken_torchvision_is_found_and_mended(tmp_path: Path) -> None:
    broken = "raise RuntimeError('operator torchvision::nms does not exist')"
    checks = check_packages(None, env=fake_packages(tmp_path, vllm="", torch="", transformers=broken))
    check = named(checks, "import transformers")
    assert (check.status, check.saw) == ("fail", "RuntimeError: operator torchvision::nms does not exist")
    assert check.remedy.startswith("pip uninstall torchvision torchaudio torchcodec")


def test_an_import_that_kills_the_interpreter_is_blamed(tmp_path: Path) -> None:
    env = fake_packages(
        tmp_path, torch="", transformers="", vllm="import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    checks = check_packages(None, env=env)
    assert named(checks, "import torch").status == "ok"
    check = named(checks, "import vllm")
    assert (check.status, check.saw) == ("fail", "the interpreter ended within the import (exit code -4)")


def test_an_import_that_hangs_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages_module, "_TIMEOUT_SECONDS", 3.0)
    env = fake_packages(tmp_path, torch="", transformers="", vllm="import time; time.sleep(60)")
    check = named(check_packages(None, env=env), "import vllm")
    assert check.status == "fail"
    assert "time-out after 3 s" in check.saw


def test_a_missing_package_of_the_connector_is_found(tmp_path: Path) -> None:
    env = fake_packages(tmp_path, vllm="", torch="", transformers="")
    checks = check_packages(None, needed=["lmcache_that_is_not_here"], env=env, load=False)
    (check,) = checks
    assert check.status == "fail"
    assert check.remedy.startswith("install lmcache_that_is_not_here there")


@pytest.mark.parametrize(("kinds", "status"), [("['DRAM_SEG', 'OBJ_SEG']", "ok"), ("[]", "fail")])
def test_a_nixl_plugin_that_does_not_load_is_found(tmp_path: Path, kinds: str, status: str) -> None:
    env = fake_packages(tmp_path, vllm="", torch="", transformers="", nixl="")
    (tmp_path / "nixl" / "_api.py").write_text(
        "class nixl_agent:\n    def __init__(self, name, config): pass\n"
        f"    def get_plugin_mem_types(self, name): return {kinds} if name == 'OBJ' else []\n"
        "def nixl_agent_config(backends): return None\n"
    )
    checks = check_packages(None, needed=["nixl", "nixl:OBJ"], env=env)
    assert named(checks, "versions").status == "ok"
    assert named(checks, "import nixl").status == "ok"
    check = named(checks, "import nixl:OBJ")
    assert check.status == status
    assert ("libcuobjclient.so.1" in check.remedy) == (status == "fail")


def test_nixl_without_telemetry_is_a_warning() -> None:
    assert check_nixl_telemetry({"NIXL_TELEMETRY_ENABLE": "y"}).status == "ok"
    check = check_nixl_telemetry({})
    assert (check.status, check.saw) == ("warn", "NIXL_TELEMETRY_ENABLE is not set")
    assert "dies at the first finished transfer" in check.remedy
    assert check_nixl_telemetry({"NIXL_TELEMETRY_ENABLE": "n"}).status == "warn"


def test_an_interpreter_without_any_of_it_says_so_once(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without its site-packages
    bare.chmod(0o755)
    checks = check_packages(str(bare))
    assert [(check.name, check.status) for check in checks] == [("versions", "fail"), ("import torch", "fail")]
    assert checks[0].saw == f"{bare}: none of them"


def test_what_is_no_interpreter_is_said(tmp_path: Path) -> None:
    (check,) = check_packages(str(tmp_path / "python"))
    assert check.saw == f"{tmp_path}/python cannot be run: No such file or directory"
    (check,) = check_packages("/bin/true")
    assert check.saw == "/bin/true is no working Python (exit code 0)"


def test_a_managed_engine_that_is_not_there_yet_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_kvoffload.engine.provision.list_installs", lambda: ([], []))
    (check,) = check_interpreter(EngineConfig(kind="cpu"), [])
    assert check.status == "skip"
    assert "not installed yet" in check.saw


# ---------------------------------------------------------------------------------------------------- GPUs
def nvidia_smi(folder: Path, gpus: str, apps: str = "", *, code: int = 0) -> str:
    """A program that answers as nvidia-smi does."""
    program = folder / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase "$1" in\n'
        f"--query-gpu=*) printf '%s' '{gpus}';;\n--query-compute-apps=*) printf '%s' '{apps}';;\nesac\nexit {code}\n"
    )
    program.chmod(0o755)
    return str(program)


TWO = "0, GPU-aa, NVIDIA H100, 81559, 81000\n1, GPU-bb, NVIDIA H100, 81559, 20000\n"
HOLDER = "GPU-bb, 4242, python3, 61000\n"


def test_free_gpus_are_ok_and_held_ones_fail(tmp_path: Path) -> None:
    program = nvidia_smi(tmp_path, TWO, HOLDER)
    first, second = check_gpu(ranks=2, words=(), env={}, nvidia_smi=program)
    assert (first.name, first.status) == ("gpu 0", "ok")
    assert second.status == "fail"
    assert "held by 4242 python3 (61000 MiB)" in second.saw
    assert second.needed == "73.28 GiB free (utilisation 0.92 of the whole)"
    words = ("--gpu-memory-utilization", "0.2")
    assert [c.status for c in check_gpu(ranks=2, words=words, env={}, nvidia_smi=program)] == ["ok", "warn"]


def test_the_visible_gpus_are_counted(tmp_path: Path) -> None:
    program = nvidia_smi(tmp_path, TWO)
    (check,) = check_gpu(ranks=2, words=(), env={"CUDA_VISIBLE_DEVICES": "1"}, nvidia_smi=program)
    assert (check.status, check.saw, check.needed) == ("fail", "1 of 2 GPUs are visible", "2")
    (check,) = check_gpu(ranks=1, words=(), env={"CUDA_VISIBLE_DEVICES": "GPU-bb,0"}, nvidia_smi=program)
    assert check.name == "gpu 1"
    (check,) = check_gpu(ranks=1, words=(), env={"CUDA_VISIBLE_DEVICES": ""}, nvidia_smi=program)
    assert check.saw == "0 of 2 GPUs are visible"


def test_a_broken_driver_fails(tmp_path: Path) -> None:
    program = nvidia_smi(tmp_path, "NVIDIA-SMI has failed because it could not reach the driver", code=9)
    (check,) = check_gpu(ranks=1, words=(), env={}, nvidia_smi=program)
    assert check.status == "fail"
    assert "could not reach the driver" in check.saw


def test_no_nvidia_smi_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    (check,) = check_gpu(ranks=1, words=(), env={})
    assert check.status == "skip"
    assert 'engine.kind = "cpu"' in check.remedy


def test_memory_that_is_not_reported_is_skipped(tmp_path: Path) -> None:
    program = nvidia_smi(tmp_path, "0, GPU-aa, NVIDIA GB10, [N/A], [N/A]\n")
    (check,) = check_gpu(ranks=1, words=(), env={}, nvidia_smi=program)
    assert check.status == "skip"


# ------------------------------------------------------------------------------------------------ together
def test_every_fault_is_found_in_one_go(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    (tmp_path / "shm").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        report = preflight(
            engine=EngineConfig(kind="cpu", python=sys.executable),
            connector=ConnectorConfig(
                name="tiered",
                kind="tiering",
                options={"size_gib": 2**20, "secondary_tiers": [{"type": "fs", "root_dir": str(blocker / "kv")}]},
            ),
            model_path=tmp_path / "model",
            ports=[port],
            packages="none",
            paths=SystemPaths(shm=tmp_path / "shm"),
        )
    assert not report.ok
    assert [check.name for check in report.failed] == [
        "memory",
        "shm",
        f"model {tmp_path}/model",
        f"tier directory {blocker}/kv",
        f"port {port}",
    ]
    with pytest.raises(PreflightError) as refused:
        refuse(report)
    text = str(refused.value)
    assert text.startswith("this server cannot start here (5 checks failed):\n  memory: ")
    assert f"  port {port}: in use by process {os.getpid()}" in text
    assert "what to do: end that process, or leave the port to the kernel" in text
    assert text.endswith("to try all the same: --kvoffload-insist, or KVOFFLOAD_INSIST=1 in the environment")
    assert refused.value.exit_code == ExitCode.ENGINE


def test_insisting_lets_it_pass_and_says_what_was_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Check(name="shm", status="fail", saw="1 MiB")
    report = PreflightReport(checks=(Check(name="memory", status="warn", saw="x"), failed))
    monkeypatch.delenv(INSIST_VARIABLE, raising=False)
    with pytest.raises(PreflightError, match=r"1 check failed"):
        refuse(report)
    assert refuse(report, insist=True) == (failed,)
    monkeypatch.setenv(INSIST_VARIABLE, "1")
    assert refuse(report) == (failed,)
    monkeypatch.setenv(INSIST_VARIABLE, "0")
    with pytest.raises(PreflightError):
        refuse(report)


def test_warnings_do_not_refuse() -> None:
    assert refuse(PreflightReport(checks=(Check(name="shm", status="warn", saw="x"),))) == ()


def test_an_attached_server_is_not_checked() -> None:
    report = preflight(
        engine=EngineConfig(kind="attach", url="http://127.0.0.1:1"),
        connector=ConnectorConfig(name="c", kind="recompute"),
    )
    assert [check.status for check in report.checks] == ["skip"]


def test_a_connector_that_makes_no_sense_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"connectors\.c"):
        preflight(engine=EngineConfig(kind="cpu"), connector=ConnectorConfig(name="c", kind="nativ"), packages="none")


def test_a_check_that_is_not_there_lists_those_that_are() -> None:
    report = PreflightReport(checks=(Check(name="shm", status="ok", saw="x"),))
    with pytest.raises(KeyError, match="no check 'disk'; there are: shm"):
        report.named("disk")
