"""``kvoffload meters`` end to end over HTTP, with recorded pages: what it prints, its exit codes, its errors."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace
from typing import Any

import pytest
from expositions import DATA, Answer, dribble, flood, page, serving

from pytest_kvoffload.cli import main
from pytest_kvoffload.commands.meters import duration, instant
from pytest_kvoffload.errors import ExitCode, UsageError


def stages(server: str, *names: str) -> Answer:
    """Answer with one recorded page after the other; the last one stays."""
    pages = [page((DATA / server / f"{name}.prom").read_bytes()) for name in names]

    def answer(request: BaseHTTPRequestHandler) -> None:
        (pages.pop(0) if len(pages) > 1 else pages[0])(request)

    return answer


@contextmanager
def vllm(server: str, *names: str, version: str = "0.32.0") -> Iterator[str]:
    version_page = page(json.dumps({"version": version}), content_type="application/json")
    with serving({"/metrics": stages(server, *names), "/version": version_page}) as base:
        yield base


def test_a_helping_tier(capsys: pytest.CaptureFixture[str]) -> None:
    with vllm("0.32.0-host", "cold", "restored") as base:
        assert main(["meters", base, "--for", "10ms"]) == ExitCode.OK
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith(f"vLLM 0.32.0, OffloadingConnector, {base}/metrics, 0.")
    titles = [line for line in lines if not line.startswith(" ")][1:]
    assert titles == [
        "hit rate (of prompt tokens)",
        "TTFT (server side)",
        "tier lookups",
        "traffic",
        "verdict: helping",
    ]
    assert "host" in out
    assert "96.0%  15360 of 16000 tokens" in out
    assert "n=8: too few, 100 are needed" in out
    assert "restoring 15360 tokens took 0.118 s, computing them takes this server" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("server", "before", "after", "word"),
    [
        ("0.32.0-host", "boot", "cold", "no reuse"),
        ("0.32.0-host", "restored", "resident", "not needed"),
        ("0.32.0-off", "cold", "restored", "not exercised"),
        ("0.32.0-host", "cold", "cold", "not exercised"),
    ],
)
def test_words_that_are_no_help_are_inconclusive(
    server: str, before: str, after: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with vllm(server, before, after) as base:
        assert main(["meters", base, "--for", "10ms"]) == ExitCode.INCONCLUSIVE
    assert f"verdict: {word}\n" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    with vllm("0.32.0-fs", "cold", "restored") as base:
        assert main(["meters", base, "--for", "10ms", "--json"]) == ExitCode.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert found["verdict"]["word"] == "helping"
    assert found["hit_rate"]["disk"] == {"rate": 0.96, "hit_tokens": 15360, "prompt_tokens": 16000}
    assert found["hit_rate"]["external"]["rate"] == 0.96
    assert found["ttft"]["count"] == 8
    assert found["ttft"]["p50"]["lower_seconds"] < found["ttft"]["p50"]["seconds"]
    assert found["ttft"]["p99"]["enough_observations"] is False
    assert found["traffic"]["stores_skipped"]["value"] is None
    assert "store_threshold of 2 or more" in found["traffic"]["stores_skipped"]["reason"]
    assert found["tiers"]["1:fs"]["read_bytes"]["value"] == 60 * 2**20


def test_several_servers_are_summed(capsys: pytest.CaptureFixture[str]) -> None:
    with vllm("0.32.0-host", "cold", "restored") as one, vllm("0.32.0-host", "cold", "restored") as two:
        main(["meters", one, "--metrics-url", f"{two}/metrics", "--for", "10ms", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["urls"] == [f"{one}/metrics", f"{two}/metrics"]
    assert found["prompt_tokens"]["value"] == 32_000
    assert len(found["engines"]) == 2


def test_watch_goes_on_until_ctrl_c_and_reports_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("pytest_kvoffload.commands.meters.time", SimpleNamespace(sleep=sleep, time=time.time))
    with vllm("0.32.0-host", "cold", "restored", "resident") as base:
        code = main(["meters", base, "--watch", "--for", "20s", "--json"])
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (code, slept) == (ExitCode.INTERRUPTED, [20.0, 20.0, 20.0])
    assert [found["verdict"]["word"] for found in documents] == ["helping", "not needed", "not exercised"]


def test_a_terminal_gets_a_table_and_no_color_is_respected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with vllm("0.32.0-host", "cold", "restored") as base:
        main(["meters", base, "--for", "10ms"])
    coloured = capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    with vllm("0.32.0-host", "cold", "restored") as base:
        main(["meters", base, "--for", "10ms"])
    plain = capsys.readouterr().out
    assert "\x1b[1;32m" in coloured
    assert "[1;32m" not in plain
    assert "[32m" not in plain
    assert "helping" in plain


def errors(capsys: pytest.CaptureFixture[str], argv: list[str]) -> tuple[int, str]:
    code = main(["meters", *argv])
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


def test_a_server_that_is_not_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/metrics": page("node_load1 0.5\n")}) as base:
        code, text = errors(capsys, [base])
    assert code == ExitCode.SCRAPE
    assert text == (
        f"kvoffload meters: cannot read metrics from {base}/metrics: a Prometheus exposition, but without vllm: "
        "metrics. Not a vLLM server, or one with --disable-log-stats\n"
    )


def test_a_dead_url(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    code, text = errors(capsys, [f"127.0.0.1:{port}"])
    assert code == ExitCode.SCRAPE
    assert f"connection refused, nothing listens at 127.0.0.1:{port}" in text


def test_a_page_of_html(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/metrics": page("<html><body>Welcome</body></html>", content_type="text/html")}) as base:
        code, text = errors(capsys, [base])
    assert (code, "a page of HTML, not a Prometheus exposition" in text) == (ExitCode.SCRAPE, True)


def test_fifty_megabytes(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/metrics": flood(50_000_000, announce=True)}) as base:
        code, text = errors(capsys, [base])
    assert code == ExitCode.SCRAPE
    assert "the server announces 50000000 bytes, the limit is 33554432 (32 MiB)" in text


def test_a_page_that_never_finishes(capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()
    with serving({"/metrics": dribble(stop, in_headers=False)}) as base:
        code, text = errors(capsys, [base, "--timeout", "300ms"])
        stop.set()
    assert (code, "timed out after 0.3 s" in text) == (ExitCode.SCRAPE, True)


def test_a_server_that_goes_away_in_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [page((DATA / "0.32.0-host" / "cold.prom").read_bytes()), page("draining\n", status=503)]
    with serving({"/metrics": lambda request: pages.pop(0)(request)}) as base:
        code, text = errors(capsys, [base, "--for", "10ms"])
    assert (code, f"cannot read metrics from {base}/metrics: HTTP 503" in text) == (ExitCode.SCRAPE, True)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "which server? kvoffload meters http://host:8000"),
        (["http://h", "--for", "soon"], "not a duration: 'soon'; write 500ms, 60s, 2m or 1h"),
        (["http://h", "--for", "0s"], "not a duration: '0s'"),
        (["http://h", "--prometheus", "http://p"], "--prometheus reads a window that is over"),
        (["http://h", "--at", "now"], "they need --prometheus URL"),
        (["--prometheus", "http://p", "--at", "yesterday"], "not a time: 'yesterday'"),
    ],
)
def test_arguments_that_make_no_sense(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = errors(capsys, argv)
    assert (code, text in shown) == (ExitCode.USAGE, True)


def test_durations_and_instants() -> None:
    assert [duration(text) for text in ("500ms", "60s", "2m", "1h", "1.5")] == [0.5, 60, 120, 3600, 1.5]
    assert instant("1700000000") == instant("2023-11-14T22:13:20Z") == instant("2023-11-14T23:13:20+01:00")
    with pytest.raises(UsageError):
        instant("noon")
    assert time.time() > instant("2023-11-14T22:13:20")
