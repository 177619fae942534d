"""Which of nixl's builds the offload spec asks for, with packages made of nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_kvoffload.engine.connectors import inside_dir

PROGRAM = """
import sys
import nixl_meta_utils
import kvoffload_nixl
if "loaded" in sys.argv:
    import nixl
if "library" in sys.argv:
    kvoffload_nixl.LIBRARY = "libc.so.6"
print(kvoffload_nixl.prefer_loadable(), nixl_meta_utils.detect_cuda_major())
"""


def choose(folder: Path, *words: str, cuda: str | None = None, builds: tuple[int, ...] = (12, 13)) -> str:
    """What the choice says, and the CUDA that nixl then takes (13 is what it found by itself)."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"class version: cuda = {cuda!r}\n")
    (folder / "nixl_meta_utils.py").write_text("def detect_cuda_major(): return 13\n")
    for name in ("nixl", *(f"nixl_cu{build}" for build in builds)):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
    env = {**os.environ, "PYTHONPATH": f"{folder}:{inside_dir()}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_without_cuda_the_build_that_loads_is_taken(tmp_path: Path) -> None:
    assert choose(tmp_path) == "True 12"


@pytest.mark.parametrize("word", ["loaded", "library"])
def test_what_is_loaded_already_or_would_load_is_left_alone(tmp_path: Path, word: str) -> None:
    assert choose(tmp_path, word) == "False 13"


def test_with_cuda_it_is_nixls_own_choice(tmp_path: Path) -> None:
    assert choose(tmp_path, cuda="13.0") == "False 13"


def test_with_one_build_there_is_no_choice(tmp_path: Path) -> None:
    assert choose(tmp_path, builds=(13,)) == "False 13"
