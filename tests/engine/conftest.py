"""Shared by the engine's tests: a stand-in vLLM for fault injection, and what a killed test must not leave behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.engine import RunningServer, boot
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig

FAKES = Path(__file__).parent / "fakes"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory that passes for a model as long as nobody loads it."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return path


@pytest.fixture
def fake_boot(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RunningServer]]:
    """Boot the stand-in with a fault; whatever was booted is stopped at the end."""
    monkeypatch.setenv("KVOFFLOAD_DEVICE_LOCK", "off")
    monkeypatch.setenv("KVOFFLOAD_CACHE_DIR", str(tmp_path / "cache"))
    booted: list[RunningServer] = []

    def run(fault: str = "serve", **changes: Any) -> RunningServer:
        env = {"PYTHONPATH": str(FAKES), "FAKE_VLLM": fault, "FAKE_VLLM_STATE": str(tmp_path / "state")}
        settings: dict[str, Any] = {"kind": "local", "env": {**env, **changes.pop("env", {})}}
        settings.update(changes.pop("engine", {}))
        connector = changes.pop("connector", ConnectorConfig(name="native", kind="native", options={"size_gib": 1}))
        model = changes.pop("model", ModelConfig(path=str(model_dir)))
        server = boot(
            engine=EngineConfig(**settings), model=model, connector=connector, run_dir=tmp_path / "run", **changes
        )
        booted.append(server)
        return server

    yield run
    for server in booted:
        server.stop()
