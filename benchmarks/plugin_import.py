"""What an installed but unused plugin costs: a run of one empty test with it and without it, in turns.

Usage: python benchmarks/plugin_import.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]


def seconds(folder: str, extra: list[str]) -> float:
    """Wall time of one run."""
    begin = time.perf_counter()
    subprocess.run([*COMMAND, *extra], check=True, capture_output=True, cwd=folder)
    return time.perf_counter() - begin


def import_seconds() -> float:
    """Time of importing the plugin where pytest is imported already."""
    code = (
        "import pytest, time; b = time.perf_counter(); import pytest_kvoffload.plugin; print(time.perf_counter() - b)"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print medians, their difference and their ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with_plugin, without = [], []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_empty.py").write_text("def test_empty(): pass\n")
        seconds(folder, [])
        for _ in range(rounds):
            with_plugin.append(seconds(folder, []))
            without.append(seconds(folder, ["-p", "no:kvoffload"]))
    imports = [import_seconds() for _ in range(rounds)]
    a, b = statistics.median(with_plugin), statistics.median(without)
    print(f"one empty test with the plugin       {a * 1000:7.1f} ms (median of {rounds})")
    print(f"one empty test without it             {b * 1000:7.1f} ms")
    print(f"difference                           {(a - b) * 1000:7.1f} ms, ratio {a / b:.3f}")
    print(f"import of the plugin alone           {statistics.median(imports) * 1000:7.1f} ms")


if __name__ == "__main__":
    main()
