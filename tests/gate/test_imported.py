"""Result files of vllm bench serve, guidellm and aiperf as arms."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.cli import main
from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.gate.imported import compare_files, read_results
from pytest_kvoffload.gate.verdict import Policy

Writer = Callable[[Path, Sequence[float]], Path]


def times(scale: float = 1.0, *, seed: int = 3, n: int = 2000) -> list[float]:
    source = random.Random(seed)
    return [scale * 0.06 * source.lognormvariate(0.0, 0.25) for _ in range(n)]


def vllm_bench(path: Path, seconds: Sequence[float], **more: Any) -> Path:
    """As vLLM 0.32's ``bench serve --save-result --save-detailed`` writes it: seconds."""
    data = {
        "date": "20261129-120000",
        "backend": "vllm",
        "model_id": "m",
        "num_prompts": len(seconds),
        "request_rate": "inf",
        "max_concurrency": 4,
        "completed": len(seconds),
        "failed": 0,
        "total_input_tokens": 1000,
        "ttfts": list(seconds),
        "itls": [[0.01] for _ in seconds],
        "errors": ["" for _ in seconds],
        "median_ttft_ms": 60.0,
    }
    path.write_text(json.dumps({**data, **more}))
    return path


def guidellm(path: Path, seconds: Sequence[float], **more: Any) -> Path:
    rows = [
        {"request_id": str(i), "time_to_first_token_ms": t * 1000, "info": {"timings": {"request_start": float(i)}}}
        for i, t in enumerate(seconds)
    ]
    requests = {"successful": rows[::-1], "incomplete": [], "errored": [], **more}
    path.write_text(json.dumps({"metadata": {"version": 1}, "benchmarks": [{"requests": requests}]}))
    return path


def aiperf(path: Path, seconds: Sequence[float], *more: dict[str, Any]) -> Path:
    rows = [
        {
            "metadata": {
                "session_num": i,
                "request_start_ns": i,
                "benchmark_phase": "profiling",
                "was_cancelled": False,
            },
            "metrics": {"time_to_first_token": {"value": t * 1000, "unit": "ms"}},
            "error": None,
        }
        for i, t in enumerate(seconds)
    ]
    path.write_text("\n".join(json.dumps(row) for row in [*rows, *more]) + "\n")
    return path


@pytest.mark.parametrize("write", [vllm_bench, guidellm, aiperf])
@pytest.mark.parametrize(("scale", "outcomes"), [(1.0, {"pass", "inconclusive"}), (2.0, {"fail"})])
def test_each_tool_gives_a_verdict(tmp_path: Path, write: Writer, scale: float, outcomes: set[str]) -> None:
    one = read_results(write(tmp_path / "a.json", times(seed=3)))
    two = read_results(write(tmp_path / "b.json", times(scale, seed=4)))
    assert one.ttft_seconds == pytest.approx(tuple(times(seed=3)))
    verdict = compare_files(one, two, policy=Policy())
    assert verdict.outcome in outcomes, verdict.findings
    assert verdict.requests_per_arm == 2000
    assert "unpaired:" in verdict.notes[0]


def test_failed_requests_refuse(tmp_path: Path) -> None:
    good = read_results(vllm_bench(tmp_path / "a.json", times()))
    bad = read_results(vllm_bench(tmp_path / "b.json", times(), failed=2, errors=["", "HTTP 500", "HTTP 500"]))
    verdict = compare_files(good, bad, policy=Policy())
    assert verdict.outcome == "fail"
    assert "2 failed requests, the first: HTTP 500" in verdict.findings[0].text
    verdict = compare_files(bad, good, policy=Policy())
    assert (verdict.outcome, verdict.findings[0].name) == ("inconclusive", "comparable")
    cancelled = {"metadata": {"was_cancelled": True}, "metrics": {}, "error": {"message": "cancelled after 0 s"}}
    assert read_results(aiperf(tmp_path / "c.jsonl", [0.1], cancelled)).first_error == "cancelled after 0 s"
    broken = guidellm(tmp_path / "d.json", [0.1], errored=[{"info": {"error": "boom"}}])
    assert (read_results(broken).failed, read_results(broken).first_error) == (1, "boom")


def test_unlike_runs_are_refused(tmp_path: Path) -> None:
    one = read_results(vllm_bench(tmp_path / "a.json", times()))
    two = read_results(vllm_bench(tmp_path / "b.json", times(), model_id="other"))
    three = read_results(aiperf(tmp_path / "c.jsonl", times()))
    assert "model_id: m in the reference, other in the candidate" in _text(one, two)
    assert "one file is of vllm bench serve, the other of aiperf" in _text(one, three)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{}", "no result file of vllm bench serve"),
        ("nonsense", "line 1 is no JSON"),
        ('{"median_ttft_ms": 3}', "averages only; run vllm bench serve with --save-result --save-detailed"),
        ('{"benchmarks": [{}, {}]}', "holds 2 benchmarks"),
        ('{"benchmarks": [{"requests": null}]}', "holds no single requests"),
        ('{"ttfts": [0.1, null]}', "request 1 has no time to first token"),
        ('{"ttfts": [0.0]}', "request 0 has no time to first token"),
        ('{"ttfts": [0.1, Infinity]}', "request 1 has no time to first token"),
        (
            '{"metadata": {}, "metrics": {"time_to_first_token": {"value": 1, "unit": "h"}}}',
            "time_to_first_token in 'h'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: str, word: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=word):
        read_results(path)


def test_too_few_requests_never_pass(tmp_path: Path) -> None:
    one = read_results(vllm_bench(tmp_path / "a.json", times(n=40)))
    verdict = compare_files(one, one, policy=Policy())
    assert verdict.outcome == "inconclusive"
    assert "cannot carry a p99" in verdict.findings[0].text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vllm_bench(tmp_path / "a.json", times())
    vllm_bench(tmp_path / "b.json", times(2.0))
    files = ["gate", "--reference-results", "a.json", "--candidate-results", "b.json", "--output", "out"]
    assert main([*files, "--threshold", "ttft_p50 regression < 10%", "--github"]) == 1
    out = capsys.readouterr().out
    assert "::error::ttft_p50 regression < 10%" in out
    assert "verdict: FAIL" in out
    assert json.loads((tmp_path / "out" / "verdict.json").read_text())["exit_code"] == 1
    assert main([*files, "--threshold", "hit_rate >= 0.5"]) == 2
    assert "of result files only regressions of ttft" in capsys.readouterr().err
    assert main(files[:3]) == 2


def _text(one: Any, two: Any) -> str:
    return compare_files(one, two, policy=Policy()).findings[0].text
