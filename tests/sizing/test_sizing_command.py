"""``kvoffload size`` from the outside: its lines, its JSON, its table and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.cli import main

EXPLICIT = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "float16"]
WORK = ["--context", "8192", "--sessions", "200", "--device-kv", "28GiB"]
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    return str(tmp_path)


def test_the_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *EXPLICIT, *WORK]) == 0
    said = capsys.readouterr().out
    assert "per token            131,072 B" in said
    assert "one request of 8,192 tokens: 1,073,741,824 B (1.0 GiB)" in said
    assert "tier: 197.8 GiB with 15% headroom" in said
    for line in (
        "--kv-offloading-size 198",
        '"cpu_bytes_to_use":212600881152',
        "LMCACHE_MAX_LOCAL_CPU_SIZE=198",
        "--l1-size-gb 198",
        'cpuOffloadingBufferSize: "198"',
        "--hicache-size 213",
        "/dev/shm      198.0 GiB",
    ):
        assert line in said


def test_explain_shows_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *EXPLICIT, *WORK, "--explain"]) == 0
    said = capsys.readouterr().out
    assert "rule: 2 x layers x kv_heads x head_dim x dtype_bytes" in said
    assert "32 x FullAttentionSpec" in said
    assert "tier: (200.0 GiB - 28.0 GiB) x 1.15 = 197.8 GiB" in said


def test_json_has_the_names_of_the_numbers(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--model", model, "--context", "8192", "--tp", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 1
    assert {
        key: data[key]
        for key in (
            "tp",
            "block_size",
            "kv_bytes_per_token",
            "window_bytes_per_token",
            "state_bytes_per_sequence",
            "padded_bytes_per_block",
            "bytes_for_one_request",
        )
    } == {
        "tp": 2,
        "block_size": 16,
        "kv_bytes_per_token": 57344,
        "window_bytes_per_token": 0,
        "state_bytes_per_sequence": 0,
        "padded_bytes_per_block": 917504,
        "bytes_for_one_request": 8192 * 57344,
    }


def test_json_of_a_tier(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gpu-memory", "80GB", "--weights", "2GB", "--context", "32768", "--sessions", "100"]
    assert main(["size", "--model", model, *arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    warm = 100 * 32768 * 114688
    held = 80 * 10**9 * 92 // 100 - 2 * 10**9
    assert (data["warm_bytes"], data["device_bytes"]) == (warm, held)
    assert data["tier_bytes"] == -(-(warm - held) * 115 // 100)
    assert data["settings"]["kv_offloading_size"] == str(-(-data["tier_bytes"] // 2**30))


def test_a_table_over_contexts_and_sessions(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--table", "8192,32768", "x", "10,100", "--device-kv", "28GiB"]
    assert main(["size", "--model", model, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "10 sessions" in lines[1]
    assert lines[2].split() == ["8,192", "0.0", "68.4"]
    assert lines[3].split() == ["32,768", "8.1", "370.3"]
    assert main(["size", "--model", model, *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tier_bytes"][0][0] == 0


def test_without_a_device_the_tier_holds_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *EXPLICIT, "--context", "8192", "--sessions", "200"]) == 0
    said = capsys.readouterr().out
    assert "device holds: not said" in said
    assert "--kv-offloading-size 230" in said


def test_no_tier_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *EXPLICIT, "--context", "8192", "--sessions", "2", "--device-kv", "28GiB"]) == 0
    said = capsys.readouterr().out
    assert "no tier needed" in said
    assert "--kv-offloading-size" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--layers, --kv-heads, --head-dim: missing; give --model"),
        (["--layers", "2"], "--kv-heads, --head-dim: missing"),
        ([*EXPLICIT, "--model", "x"], "--model and explicit numbers (--layers, --kv-heads, --head-dim) exclude"),
        (EXPLICIT, "--context: missing"),
        ([*EXPLICIT, "--context", "0"], "context: got 0; expected 1 token or more"),
        ([*EXPLICIT, "--context", "8", "--device-kv", "1GiB"], "--sessions: missing"),
        ([*EXPLICIT, *WORK, "--headroom=-5%"], "--headroom: '-5%' is out of range"),
        ([*EXPLICIT, "--context", "8", "--sessions", "2", "--device-kv", "28"], "'28' has no unit"),
        ([*EXPLICIT, "--context", "8", "--sessions", "2", "--gpu-memory", "80GB"], "--weights: missing"),
        ([*EXPLICIT, *WORK, "--num-gpu-blocks", "5"], "--device-kv and --num-gpu-blocks exclude each other"),
        ([*EXPLICIT, "--device-kv", "1GiB", "--table", "1,2"], "expected CONTEXTS x SESSIONS"),
        ([*EXPLICIT, "--device-kv", "1GiB", "--table", "a x 2"], "are not whole numbers"),
        ([*EXPLICIT, *WORK, "--kv-cache-dtype", "fp9"], "'fp9' is unknown (did you mean 'fp8'?)"),
        ([*EXPLICIT, *WORK, "--tp", "0"], "tp: got 0; expected 1 or more"),
        ([*EXPLICIT, *WORK, "--vllm-version", "new"], "vllm_version: got 'new'"),
    ],
)
def test_bad_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_refusal_of_vllm_is_said_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, "num_attention_heads": 28}))
    assert main(["size", "--model", str(tmp_path), "--context", "1", "--tp", "8"]) == 2
    said = capsys.readouterr().err
    assert "Total number of attention heads (28) must be divisible by tensor parallel size (8)." in said


def test_an_unknown_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, "architectures": ["NewForCausalLM"]}))
    assert main(["size", "--model", str(tmp_path), "--context", "1"]) == 2
    assert "architectures: NewForCausalLM is unknown" in capsys.readouterr().err
    assert main(["size", "--model", str(tmp_path), "--context", "1", "--assume-standard"]) == 0
    assert "note: NewForCausalLM is not in the catalog: assumed ordinary attention" in capsys.readouterr().out
