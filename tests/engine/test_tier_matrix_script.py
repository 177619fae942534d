"""The script of the tier matrix, without an engine: what it leaves behind when it is ended, what of a page it keeps."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tier_matrix.py"
CELLS = {"boots": "9 s", "exercised": "yes", "hit rate": "0.99", "TTFT / control": "0.50", "same output": "yes"}
CELLS |= {"clean stop": "yes", "nothing left": "yes"}
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


def matrix(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("tier_matrix", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tier_matrix", module)
    spec.loader.exec_module(module)
    return module


def test_rows_of_a_page_that_were_not_run_again_stay_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, page, results = matrix(monkeypatch), tmp_path / "page.md", tmp_path / "results.json"
    older = {"0.27.1": {"native": CELLS, "tiering fs": CELLS}, "0.32.0": {"native": CELLS}}
    page.write_text(script.as_markdown(older))
    assert script.from_markdown(page.read_text()) == older
    # A sitting that has run one row of one version, and has nothing left to do.
    results.write_text(json.dumps({"0.27.1": {"recompute": CELLS, "native": {**CELLS, "hit rate": "0.42"}}}))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv(script.MARKER, "this test's own")
    words = ["--versions", "0.27.1", "--rows", "native", "--results", str(results), "--write", str(page)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert script.main() == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    merged = script.from_markdown(page.read_text())
    assert sorted(merged["0.27.1"]) == ["native", "recompute", "tiering fs"]
    assert merged["0.27.1"]["native"]["hit rate"] == "0.42"
    assert merged["0.27.1"]["tiering fs"] == CELLS
    assert merged["0.32.0"] == older["0.32.0"]
