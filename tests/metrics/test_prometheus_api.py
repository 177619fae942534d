"""The same window from a Prometheus server: against a real one, and against answers that it might give."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from expositions import DATA, Answer, page, serving
from prometheus_server import need_prometheus, prometheus, scraped

from pytest_kvoffload.cli import main
from pytest_kvoffload.errors import ExitCode, ScrapeError
from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.prometheus_api import snapshots_between
from pytest_kvoffload.metrics.query import declared, histogram, total

HITS = "vllm:prompt_tokens_by_source_total"


def test_a_real_prometheus_gives_the_same_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_prometheus()
    stage = "cold"

    def metrics(request: BaseHTTPRequestHandler) -> None:
        page((DATA / "0.32.0-host" / f"{stage}.prom").read_bytes())(request)

    with serving({"/metrics": metrics}) as target, prometheus(target, tmp_path) as url:
        start = scraped(url, f'{HITS}{{source="local_compute"}}')
        stage = "restored"
        end = scraped(url, f'({HITS}{{source="external_kv_transfer"}} > 15000)')
        times = ["--at", f"{end:.3f}", "--for", f"{end - start:.3f}s"]
        code = main(["meters", "--prometheus", url, *times, "--selector", 'job="test"', "--json"])
        found = json.loads(capsys.readouterr().out)
        before, after, notes = snapshots_between(url, start_seconds=start, end_seconds=end)
        with pytest.raises(ScrapeError, match=r'no vllm: series with \{job="other"\}'):
            snapshots_between(url, start_seconds=start, end_seconds=end, selector='job="other"')
        with pytest.raises(ScrapeError, match="none yet at"):
            snapshots_between(url, start_seconds=start - 3600, end_seconds=end)
        with pytest.raises(ScrapeError, match=r"the query failed: .*parse error"):
            snapshots_between(url, start_seconds=start, end_seconds=end, selector="job=")
    assert code == ExitCode.OK
    assert found["verdict"]["word"] == "helping"
    assert found["hit_rate"]["host"] == {"rate": 0.96, "hit_tokens": 15360, "prompt_tokens": 16000}
    assert found["ttft"]["count"] == 8
    window = delta(before, after)
    assert notes == ()
    # Whole numbers, where increase() would have extrapolated.
    assert total(window, HITS, {"source": "external_kv_transfer"}) == 15_360
    # Declared without a series: Prometheus remembers that from its metadata.
    assert declared(window, "vllm:kv_offload_allocation_failure_total")
    ttft = histogram(window, "vllm:time_to_first_token_seconds")
    assert ttft is not None
    assert ttft.buckets[-1] == (float("inf"), 8)


def answers(before: list[dict[str, object]], after: list[dict[str, object]]) -> dict[str, Answer]:
    def instant_query(request: BaseHTTPRequestHandler) -> None:
        at = float(parse_qs(urlsplit(request.path).query)["time"][0])
        data = {"status": "success", "data": {"result": before if at < 1500 else after}}
        page(json.dumps(data), content_type="application/json")(request)

    return {
        "/api/v1/query": instant_query,
        "/api/v1/metadata": page(json.dumps({"status": "success", "data": {}}), content_type="application/json"),
    }


def one(name: str, value: float, instance: str) -> dict[str, object]:
    return {"metric": {"__name__": name, "job": "v", "instance": instance}, "value": [0, str(value)]}


def test_an_instance_that_was_scraped_later_is_left_out_unless_it_was_born_later() -> None:
    start = "process_start_time_seconds"
    before = [one("vllm:prompt_tokens_total", 100, "a"), one(start, 500, "a")]
    after = [
        one("vllm:prompt_tokens_total", 150, "a"),
        one(start, 500, "a"),
        one("vllm:prompt_tokens_total", 9000, "old"),
        one(start, 400, "old"),
        one("vllm:prompt_tokens_total", 30, "young"),
        one(start, 1200, "young"),
    ]
    with serving(answers(before, after)) as base:
        first, second, notes = snapshots_between(base, start_seconds=1000, end_seconds=2000)
    assert total(delta(first, second), "vllm:prompt_tokens_total") == 80
    assert notes == ("v/old was not scraped yet at the beginning of the window: left out",)


def test_a_server_that_is_no_prometheus() -> None:
    with (
        serving({"/api/v1/metadata": page("<html>")}) as base,
        pytest.raises(ScrapeError, match="not a Prometheus server's API"),
    ):
        snapshots_between(base, start_seconds=0, end_seconds=1)
