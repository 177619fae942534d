"""``kvoffload demo`` as a user runs it, on a terminal of 80 columns: real vLLM, one table, one sentence, one file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest
from fakes.terminal import record

from pytest_kvoffload.output.rows import phase_rows, same_output
from pytest_kvoffload.records import Measurement

pytestmark = pytest.mark.engine


def test_the_main_job_in_one_command(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "pytest_kvoffload", "demo", "--output", str(out)]
    seen = record(command, columns=80, cwd=tmp_path, timeout_seconds=900)
    assert seen.code == 0, seen.text
    assert "The tier helps: a revisit takes" in seen.text
    assert "same output" in " ".join(seen.text.split())
    assert [line for line in seen.overflows if str(out) not in line] == []
    # While it boots: seconds and the last line of vLLM's log. While it measures: how far, how fast, how well.
    frames = "\n".join(seen.frames)
    assert re.search(r"^. native: \d+ s, \S", frames, re.MULTILINE), frames
    assert re.search(
        r"^. native restored: \d+/12.*, [\d.]+/s, hit rate (?:0\.9\d|1\.00), TTFT p50 [\d.]+ ms$", frames, re.MULTILINE
    )
    assert "/12 requests" not in seen.text
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
