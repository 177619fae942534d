"""The script of the tier matrix, without an engine: what it leaves behind when it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tier_matrix.py"
# The script itself, with a row that never ends in place of a boot.
DRIVER = """
import importlib.util, sys, tempfile, time
from pathlib import Path

spec = importlib.util.spec_from_file_location("tier_matrix", sys.argv.pop(1))
matrix = importlib.util.module_from_spec(spec)
sys.modules["tier_matrix"] = matrix
spec.loader.exec_module(matrix)

def run_row(row, version, *, control, place):
    Path(tempfile.mkdtemp(prefix="kvo-")).joinpath("socket").touch()
    print("running", flush=True)
    time.sleep(600)

matrix.run_row = run_row
sys.exit(matrix.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_matrix_that_is_ended_removes_its_directories(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(SCRIPT), "--rows", "recompute"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        while process.stdout.readline().strip() != "running":
            assert process.poll() is None
        assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["kvm", "kvoffload"]
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    assert list(tmp_path.iterdir()) == []
