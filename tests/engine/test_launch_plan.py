"""The command line that a configuration becomes, and the generated model's recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_kvoffload.engine import RunningServer, tiny_model
from pytest_kvoffload.engine.models import ensure_tiny_model, full_recipe
from pytest_kvoffload.errors import ConfigError, ProvisionError
from pytest_kvoffload.records import ConnectorConfig, ModelConfig

FakeBoot = Callable[..., RunningServer]


def test_defaults_on_the_cpu_backend(fake_boot: FakeBoot, model_dir: Path) -> None:
    server = fake_boot(connector=ConnectorConfig(name="control", kind="recompute"))
    words = server.info.command[3:]
    assert "--enforce-eager" in words
    assert words[words.index("--num-gpu-blocks-override") + 1] == "80"
    assert words[words.index("--model") + 1] == str(model_dir)
    assert "--kv-transfer-config" not in words
    assert server.info.environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "PYTHONPATH" in server.info.environment


def test_the_users_arguments_come_last_and_win(fake_boot: FakeBoot, model_dir: Path) -> None:
    server = fake_boot(
        engine={"args": ("--num-gpu-blocks-override", "32", "--served-model-name=mine"), "max_model_len": 4096},
        env={"VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "1"},
        model=ModelConfig(path=str(model_dir), served_name="ignored"),
    )
    assert server.info.command.count("--num-gpu-blocks-override") == 1
    assert (server.info.num_gpu_blocks, server.info.max_model_len, server.info.model) == (32, 4096, "mine")
    assert server.info.environment["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_a_users_port_is_taken_over(fake_boot: FakeBoot) -> None:
    with pytest.raises(ConfigError, match=r"\[engine\] args: got --port 99999; expected a port from 1 to 65535"):
        fake_boot(engine={"args": ("--port=99999",)})


def test_a_difference_in_size_is_said(fake_boot: FakeBoot) -> None:
    server = fake_boot(engine={"num_gpu_blocks": 64, "args": ("--num-gpu-blocks-override", "16")})
    assert server.info.differences == ("num_gpu_blocks: 64 was asked for, but the server has 16",)


def test_recipes_are_checked_and_named() -> None:
    assert full_recipe({}) == tiny_model.DEFAULT_RECIPE
    assert full_recipe({})["max_position_embeddings"] >= 8192
    assert full_recipe({"seed": 0})["seed"] == 0
    assert tiny_model.recipe_hash(full_recipe({"layers": 2})) != tiny_model.recipe_hash(full_recipe({}))
    for overrides, message in (
        ({"layer": 2}, r"layer; expected one of .*\(did you mean 'layers'\?\)"),
        ({"layers": 0}, "layers: got 0; expected a positive whole number"),
        ({"kv_heads": 3}, r"kv_heads: got 3; expected a divisor of heads \(8\)"),
        ({"hidden_size": 128}, "heads: got 8; expected a head size .* multiple of 32"),
    ):
        with pytest.raises(ConfigError, match=message):
            full_recipe(overrides)


def test_the_tokenizer_has_one_token_per_byte() -> None:
    alphabet = tiny_model.byte_alphabet()
    assert len(set(alphabet)) == 256
    assert alphabet[ord("A")] == "A"
    assert all(character.isprintable() for character in alphabet)
    assert tiny_model.VOCABULARY == 256 + 4


def test_a_model_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOFFLOAD_CACHE_DIR", str(tmp_path))
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho made >> {tmp_path}/calls\ntouch $2/config.json\n")
    python.chmod(0o755)
    lines: list[str] = []
    first = ensure_tiny_model(python, {"layers": 2}, progress=lines.append)
    assert lines == ["making the test model (2 layers, hidden size 256)"]
    assert json.loads((first / "recipe.json").read_text())["layers"] == 2
    assert ensure_tiny_model(python, {"layers": 2}) == first
    assert (tmp_path / "calls").read_text() == "made\n"
    (first / "complete").unlink()
    assert ensure_tiny_model(python, {"layers": 2}) == first
    assert (tmp_path / "calls").read_text() == "made\nmade\n"


def test_a_model_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOFFLOAD_CACHE_DIR", str(tmp_path))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(ProvisionError, match=r"could not be made with \S+/python: ModuleNotFoundError.*torch"):
        ensure_tiny_model(python, {})
