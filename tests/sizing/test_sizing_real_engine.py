"""Sizes and chunks against real engine cores on the CPU backend.

Runs on the managed engine. ``KVOFFLOAD_TEST_PYTHONS`` (paths joined by ``:``) names interpreters with other versions of
vLLM to run on instead; one process answers for all configurations.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from engine_answers import BLOCKS_PER_CHUNK, CPU_BYTES
from tiny_configs import CONFIGS

import pytest_kvoffload.engine.inside
from pytest_kvoffload.engine.provision import ensure_engine
from pytest_kvoffload.sizing import Serving, chunks, model_kv

PYTHONS = [path for path in os.environ.get("KVOFFLOAD_TEST_PYTHONS", "").split(":") if path] or ["managed"]
DATA = Path(__file__).parent / "data"
"""Answers that engines of two versions gave (``engine_<version>.json``)."""
INSIDE = Path(next(iter(pytest_kvoffload.engine.inside.__path__)))


@pytest.fixture(scope="module", params=PYTHONS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the engine cores of one vLLM allocated."""
    python = str(request.param) if request.param != "managed" else str(ensure_engine().python)
    folder = tmp_path_factory.mktemp("sizing")
    configs = folder / "configs.json"
    configs.write_text(json.dumps(CONFIGS), encoding="utf-8")
    env: Mapping[str, str] = {
        **os.environ,
        "PYTHONPATH": str(INSIDE),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
    }
    script = Path(__file__).with_name("engine_answers.py")
    done = subprocess.run(
        [python, str(script), str(configs)], env=env, cwd=folder, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answers


@pytest.mark.engine
@pytest.mark.parametrize("name", list(CONFIGS))
def test_the_engine_allocates_what_sizing_says(engine: dict[str, Any], name: str) -> None:
    check(engine, name)


@pytest.mark.parametrize("version", ["0_27_1", "0_32_0"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_recorded_engines_allocate_what_sizing_says(version: str, name: str) -> None:
    recorded: dict[str, Any] = json.loads((DATA / f"engine_{version}.json").read_text(encoding="utf-8"))
    check(recorded, name)


def check(engine: dict[str, Any], name: str) -> None:
    """Compare one model of one engine with what sizing says."""
    real = engine["answers"][name]
    serving = Serving(
        default_block_size=128,
        max_num_batched_tokens=2048,
        async_scheduling=real["async_scheduling"],
        vllm_version=engine["vllm"].split("+")[0],
    )
    kv = model_kv(CONFIGS[name], serving=serving)
    assert kv.block_size == real["block_size"]
    assert sorted([len(g.layers), g.block_size, g.page_bytes] for g in kv.groups) == real["groups"]
    assert kv.padded_bytes_per_block == real["bytes_per_block"]
    assert kv.blocks_for_one_request(2048) == real["blocks_per_request"]
    assert real["chunks"] == chunks(
        CPU_BYTES,
        kv.padded_bytes_per_block,
        blocks_per_chunk=BLOCKS_PER_CHUNK,
        vllm_version=serving.vllm_version,
    )
