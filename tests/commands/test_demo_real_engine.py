"""``kvoffload demo`` as a user runs it: real vLLM, both arms, one table, one sentence, one file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pytest_kvoffload.output.rows import phase_rows, same_output
from pytest_kvoffload.records import Measurement

pytestmark = pytest.mark.engine


def test_the_main_job_in_one_command(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "pytest_kvoffload", "demo", "--output", str(out)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The tier helps: a revisit takes" in done.stdout
    assert "same output" in done.stdout
    document = json.loads((out / "demo.json").read_bytes())
    assert document["schema_version"] == 1
    assert document["exit_code"] == 0
    control, native = (msgspec.convert(raw, Measurement) for raw in document["measurements"])
    ours, theirs = (next(r for r in phase_rows(m) if r.phase == "restored") for m in (native, control))
    assert ours.external_rate is not None
    assert ours.external_rate >= 0.9
    assert ours.device_rate == 0
    assert theirs.external_rate == 0
    assert ours.ttft[0].seconds is not None
    assert theirs.ttft[0].seconds is not None
    assert ours.ttft[0].seconds < theirs.ttft[0].seconds
    assert ours.load_bytes == native_store_bytes(native)
    for phase in ("cold", "restored"):
        equal, compared = same_output(control.phase("cold").samples, native.phase(phase).samples)
        assert equal == compared == ours.n


def native_store_bytes(native: Measurement) -> float | None:
    """What the cold pass stored is what the restored pass loads: every session once."""
    return next(row for row in phase_rows(native) if row.phase == "cold").store_bytes
