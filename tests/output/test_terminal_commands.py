"""What a person sees of the ``kvoffload`` commands: recorded on a pseudo-terminal."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM
from fakes.terminal import record
from rich.console import Console

from pytest_kvoffload.output.progress import one_line, phase_text
from pytest_kvoffload.output.rows import PhaseRow, QuantileCell
from pytest_kvoffload.output.table import print_rows
from pytest_kvoffload.output.wrap import clean, fit
from pytest_kvoffload.probe import Progress

LIVING = """
import time
from pytest_kvoffload.output.progress import CommandProgress
with CommandProgress(enabled={enabled}) as progress:
    for word in ("[bold]weights[/bold]", "x" * 300, "\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 log", "last"):
        progress.line("native: 3 s, " + word)
        time.sleep(0.3)
print("done")
"""
PROGRESS = Progress(
    phase="restored",
    done=7,
    total=12,
    hit_rate=0.987,
    ttft_p50_seconds=0.0284,
    requests_per_second=3.14159,
    arm="native",
)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pytest_kvoffload", *words]


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (None, "native restored: 7/12 requests, 3.14/s, hit rate 0.99, TTFT p50 28.4 ms"),
        (80, "native restored: 7/12 requests, 3.14/s, hit rate 0.99, TTFT p50 28.4 ms"),
        (65, "native restored: 7/12, 3.14/s, hit rate 0.99, TTFT p50 28.4 ms"),
        (55, "native restored: 7/12, hit rate 0.99, TTFT p50 28.4 ms"),
        (30, "native restored: 7/12"),
    ],
)
def test_a_phase_is_said_in_as_many_words_as_fit(width: int | None, text: str) -> None:
    assert phase_text(PROGRESS, width=width) == text


def test_what_is_not_known_is_not_said() -> None:
    begun = Progress(phase="cold", done=0, total=12, hit_rate=None, ttft_p50_seconds=None)
    assert phase_text(begun) == "cold: 0/12 requests"


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO", "(APIServer pid=1) INFO"),
        ("a\rb\x07c\tlog", "a b c log"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\u202egnp.exe", "gnp.exe"),
    ],
)
def test_a_line_of_a_log_cannot_steer_the_terminal(raw: str, plain: str) -> None:
    assert one_line(raw) == plain
    assert "\x1b" not in clean(raw)


def test_a_long_line_breaks_between_words_and_a_path_stays_whole() -> None:
    path = "/a/" + "b" * 50
    assert fit(f"  cause: it is long at {path} now", width=30) == f"  cause: it is long at\n    {path}\n    now"
    assert fit("short\n\nlines stay", width=30) == "short\n\nlines stay"


@pytest.mark.parametrize("columns", [80, 160])
def test_the_living_line_never_wraps_and_is_gone_at_the_end(columns: int, tmp_path: Path) -> None:
    seen = record([sys.executable, "-c", LIVING.format(enabled=True)], columns=columns, cwd=tmp_path)
    assert seen.overflows == []
    assert any(frame.endswith("native: 3 s, [bold]weights[/bold]") for frame in seen.frames)
    assert any(re.search(r"^\S native: 3 s, x{50,}…$", frame) for frame in seen.frames)
    assert any(frame.endswith("native: 3 s, red log") for frame in seen.frames)
    assert seen.screen == ("done",)


def test_the_living_line_is_absent_where_it_is_not_wanted(tmp_path: Path) -> None:
    seen = record([sys.executable, "-c", LIVING.format(enabled=False)], columns=80, cwd=tmp_path)
    assert seen.frames == ("done",)


def test_a_dumb_terminal_gets_a_line_and_no_escape(tmp_path: Path) -> None:
    script = [sys.executable, "-c", LIVING.format(enabled=True)]
    seen = record(script, columns=80, cwd=tmp_path, environment={"TERM": "dumb"})
    assert "\x1b" not in seen.raw
    assert seen.screen == ("  native: 3 s, [bold]weights[/bold]", "done")


def test_without_a_terminal_a_line_now_and_then(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIVING.format(enabled=True)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "  native: 3 s, [bold]weights[/bold]\n"  # the next one after thirty seconds
    assert done.stdout == "done\n"


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["demo", "--help"],
        ["meters", "http://127.0.0.1:9"],
        ["gate", "--reference", "nosuch", "--config", "nosuch.toml"],
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_wider_than_the_terminal(words: list[str], columns: int, tmp_path: Path) -> None:
    seen = record(command(*words), columns=columns, cwd=tmp_path)
    assert seen.screen
    assert seen.overflows == []


def test_the_help_says_what_each_exit_code_means(tmp_path: Path) -> None:
    seen = record(command("--help"), columns=80, cwd=tmp_path)
    assert "    1  failed        what was judged is bad" in seen.screen
    assert "    3  inconclusive  nothing can be said, and that is no pass" in seen.screen


@pytest.mark.parametrize("width", [80, 160])
def test_a_table_of_the_worst_names_folds_words_and_cuts_no_number(width: int) -> None:
    worst = PhaseRow(
        arm="lmcache_mp_disk_candidate",
        phase="restored",
        n=1200,
        failed=3,
        device_rate=0.12,
        external_rate=0.97,
        tier_rates={"host": 0.6, "disk": 0.37},
        ttft=tuple(
            QuantileCell(q=q, seconds=s, low=s * 0.9, high=s * 1.2)
            for q, s in ((0.5, 0.0312), (0.95, 0.1234), (0.99, 1.234))
        ),
        store_bytes=123456789012,
        load_bytes=98765432101,
        same_output=(1187, 1200),
        complete=False,
    )
    out = io.StringIO()
    print_rows([worst], Console(file=out, width=width, color_system=None))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in out.getvalue()
    first = lines[2].split()
    for number in ("1200", "0.12", "0.97", "115" if width == 80 else "115.0", "1187/1200"):
        assert number in first


GATE = """
[engine]
kind = "attach"
url = "{url}"
[connectors.native]
kind = "native"
size_gib = 1
[workload]
prefix_tokens = 128
suffix_tokens = 8
output_tokens = 4
sessions = 12
"""


def test_the_gate_says_how_far_it_is_and_its_verdict_in_colour(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="the gate needs the extra of that name")
    config = FakeConfig(tier_blocks=800, seconds_per_token=0.0005)
    with FakeVLLM(config) as one, FakeVLLM(config) as two:
        (tmp_path / "kvoffload.toml").write_text(GATE.format(url=one.url))
        (tmp_path / "old.toml").write_text(GATE.format(url=two.url))
        words = ["gate", "--reference", "old.toml", "--requests", "12", "--boots", "1", "--output", "out"]
        seen = record(command(*words), columns=80, cwd=tmp_path, timeout_seconds=240)
    restored = r"block 1, candidate, restored: \d+/12.*hit rate 0\.9"
    assert any(re.search(restored, frame) for frame in seen.frames), seen.frames
    cold = r"block 1, reference, cold: \d+/12.*/s, hit rate 0\.00, TTFT p50"
    assert any(re.search(cold, frame) for frame in seen.frames)
    assert not any("/12 requests" in line for line in seen.screen)
    assert any(line.startswith("verdict: INCONCLUSIVE") for line in seen.screen), seen.text
    assert [line for line in seen.overflows if str(tmp_path) not in line] == []
    assert "33" in seen.colours  # yellow, as a word that is neither good nor bad


def test_meters_counts_down_and_leaves_its_table_alone(tmp_path: Path) -> None:
    with FakeVLLM(FakeConfig(tier_blocks=40)) as server:
        seen = record(command("meters", server.url, "--for", "2s"), columns=80, cwd=tmp_path)
    assert any(re.search(r"reading for 2 s, \d s to go", frame) for frame in seen.frames)
    assert "to go" not in seen.text
    assert any(line.startswith("verdict: not exercised") for line in seen.screen)
    assert seen.overflows == []
