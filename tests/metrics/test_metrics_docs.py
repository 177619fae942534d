"""The page about meters says what the code does, its example runs, and the room costs an import nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from expositions import DATA, page, serving

from pytest_kvoffload.commands.meters import EXIT_CODES
from pytest_kvoffload.metrics import verdict
from pytest_kvoffload.metrics.fetch import MAX_BYTES

DOCS = Path(__file__).parents[2] / "docs" / "meters.md"
HEAVY = ("requests", "prometheus_client", "rich", "numpy", "scipy", "yaml", "msgspec", "vllm")


def test_the_thresholds_in_the_page_are_those_in_the_code() -> None:
    text = DOCS.read_text()
    assert f"at least {verdict.MIN_REUSE_RATE:.0%}".replace("%", " %") in text
    assert f"fewer than {verdict.MIN_REQUESTS} requests" in text
    assert f"{MAX_BYTES // 2**20} MiB" in text.replace("\n", " ")
    rows = {
        line.split("|")[1].strip(" `"): line.split("|")[3].strip() for line in text.splitlines() if line[:3] == "| `"
    }
    assert rows == {
        word: str(int(EXIT_CODES.get(word, 3)))
        for word in ("helping", "hurting", "unclear", "not needed", "no reuse", "not exercised")
    }


def test_the_example_in_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = DOCS.read_text().split("```python\n")[1].split("```")[0]
    pages = [page((DATA / "0.32.0-host" / f"{stage}.prom").read_bytes()) for stage in ("cold", "restored")]
    with serving({"/metrics": lambda request: pages.pop(0)(request)}) as base:
        exec(compile(code.replace("http://localhost:8000", base), str(DOCS), "exec"), {})
    rate, bandwidth = capsys.readouterr().out.splitlines()
    assert rate == "0.960 (15360 of 16000 prompt tokens from tier host)"
    assert float(bandwidth) > 0


def test_the_room_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_kvoffload.metrics import (delta, exposition, fetch, hit_rate, meters, prometheus_api, "
        "quantiles, query, readings, report, scrape, verdict); import pytest_kvoffload.commands.meters; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
