"""Scraping: what a good page becomes, and that everything else is a clear error in bounded time."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
import urllib3
from expositions import Answer, cut_off, dribble, flood, page, serving, silent
from hypothesis import given
from hypothesis import strategies as st

from pytest_kvoffload.errors import ScrapeError
from pytest_kvoffload.metrics.exposition import ExpositionError, parse_exposition
from pytest_kvoffload.metrics.scrape import metrics_url, scrape

PLAIN = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 36000.0
# HELP vllm:prompt_tokens_created Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:kv_offload_load_bytes_total counter
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 5.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 17.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
"""

OPENMETRICS = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 36000.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:kv_offload_load_bytes counter
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 5.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 17.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
# EOF
"""
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    ("body", "content_type"), [(PLAIN, "text/plain; version=0.0.4"), (OPENMETRICS, OPENMETRICS_TYPE)]
)
def test_samples_keep_their_own_names_and_kinds_in_both_formats(body: str, content_type: str) -> None:
    with serving({"/metrics": page(body, content_type=content_type)}) as base:
        found = scrape([f"{base}/metrics"])
    kinds = {sample.name: sample.kind for sample in found.samples}
    assert kinds == {
        "vllm:prompt_tokens_total": "counter",
        "vllm:prompt_tokens_created": "gauge",
        "vllm:iteration_tokens_total_bucket": "histogram",
        "vllm:iteration_tokens_total_count": "histogram",
        "vllm:iteration_tokens_total_sum": "histogram",
        "vllm:num_requests_running": "gauge",
    }
    assert found.families["vllm:prompt_tokens_total"] == "counter"
    assert found.families["vllm:iteration_tokens_total"] == "histogram"
    # Declared, no sample: known all the same.
    assert found.families["vllm:kv_offload_load_bytes_total"] == "counter"
    assert all(sample.labels["endpoint"] == f"{base}/metrics" for sample in found.samples)
    assert found.urls == (f"{base}/metrics",)


def test_several_endpoints_are_read_into_one_snapshot_and_told_apart() -> None:
    with serving({"/a": page('x{endpoint="own"} 1\n'), "/b": page("x 2\n")}) as base:
        found = scrape([f"{base}/a", f"{base}/b", f"{base}/a"])
        assert found.urls == (f"{base}/a", f"{base}/b")
        assert {(s.labels["endpoint"], s.labels.get("exported_endpoint"), s.value) for s in found.samples} == {
            (f"{base}/a", "own", 1.0),
            (f"{base}/b", None, 2.0),
        }


def test_one_endpoint_that_fails_fails_the_snapshot() -> None:
    with serving({"/a": page("x 1\n")}) as base, pytest.raises(ScrapeError, match=r"/b: HTTP 404"):
        scrape([f"{base}/a", f"{base}/b"])


def test_compressed_page() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        raw = gzip.compress(PLAIN.encode())
        request.send_response(200)
        request.send_header("Content-Encoding", "gzip")
        request.send_header("Content-Length", str(len(raw)))
        request.end_headers()
        request.wfile.write(raw)

    with serving({"/metrics": answer}) as base:
        assert len(scrape([f"{base}/metrics"]).samples) == 7


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page("<!DOCTYPE html><html><body>nginx</body></html>", content_type="text/html"), "a page of HTML"),
        (page("<html></html>"), "a page of HTML"),
        (page('{"detail": "hello"}\n'), "JSON, not a Prometheus exposition"),
        (page(""), "an empty page"),
        (page("# nothing here\n"), "without a single sample"),
        (page("hello world\n"), r"not a Prometheus exposition: line 1 is 'hello world'"),
        (page(b"a 1\n\xff\xfe 2\n"), "not UTF-8 text"),
        (page(PLAIN + 'x{a="b} 3\n'), r"not a Prometheus exposition: line 15"),
        (page("a 1\na 2\n"), "malformed: a appears twice with the same labels, as 1 and 2"),
        (page("oops\n", status=500), "HTTP 500"),
        (page("who\n", status=401), "HTTP 401; the endpoint asks for credentials"),
        (page("gone\n", status=404), "HTTP 404; vLLM serves its metrics under /metrics"),
        (cut_off(PLAIN, announced=10_000), r"the body was cut off"),
        (page(PLAIN[:-3]), "truncated: the last line has no line feed"),
        (page(PLAIN[:-30]), "truncated"),
        (page(OPENMETRICS.replace("# EOF\n", ""), content_type=OPENMETRICS_TYPE), "truncated: OpenMetrics"),
        (page('# TYPE h histogram\nh_bucket{le="1"} 1\n'), "ends inside histogram h, before its \\+Inf bucket"),
        (page('# TYPE h histogram\nh_bucket{le="+Inf"} 1\n'), "ends inside histogram h, before its _count"),
    ],
)
def test_what_is_no_complete_exposition_is_said(answer: Answer, reason: str) -> None:
    with serving({"/metrics": answer}) as base, pytest.raises(ScrapeError, match=reason) as caught:
        scrape([f"{base}/metrics"])
    assert str(caught.value).startswith(f"cannot read metrics from {base}/metrics: ")


@pytest.mark.parametrize("in_headers", [True, False])
def test_a_server_that_never_finishes_is_left_at_the_deadline(stop: threading.Event, in_headers: bool) -> None:
    # Each byte renews the time-out of a socket: only a deadline over everything ends this.
    with serving({"/metrics": dribble(stop, in_headers=in_headers)}) as base:
        with pytest.raises(ScrapeError, match=r"timed out after 0\.3 s"):
            scrape([f"{base}/metrics"], timeout_seconds=0.3)
        stop.set()


@pytest.mark.skipif(not hasattr(urllib3.HTTPResponse, "shutdown"), reason="urllib3 before 2.3 cannot end a read")
def test_no_thread_is_left_with_a_body_that_never_ends(stop: threading.Event) -> None:
    with serving({"/metrics": dribble(stop, in_headers=False)}) as base:
        with pytest.raises(ScrapeError, match="with a body that never ended"):
            scrape([f"{base}/metrics"], timeout_seconds=1.0)
        for thread in threading.enumerate():
            if thread.name == f"scrape {base}/metrics":
                thread.join(10)
                assert not thread.is_alive()
        assert not stop.is_set()


def test_a_server_that_never_answers(stop: threading.Event) -> None:
    with serving({"/metrics": silent(stop)}) as base:
        with pytest.raises(ScrapeError, match=r"timed out after 0\.2 s with no complete answer"):
            scrape([f"{base}/metrics"], timeout_seconds=0.2)
        stop.set()


@pytest.mark.parametrize(("announce", "what"), [(True, "announces 50000000 bytes"), (False, "sent more than 1048576")])
def test_a_body_without_end_is_refused(announce: bool, what: str) -> None:
    with serving({"/metrics": flood(50_000_000, announce=announce)}) as base, pytest.raises(ScrapeError, match=what):
        scrape([f"{base}/metrics"], max_bytes=2**20)


def test_fifty_megabytes_are_refused_by_default() -> None:
    with (
        serving({"/metrics": flood(50_000_000, announce=False)}) as base,
        pytest.raises(ScrapeError, match=r"the limit is 33554432 \(32 MiB\)"),
    ):
        scrape([f"{base}/metrics"], timeout_seconds=60)


def test_a_parse_that_takes_too_long_is_given_up() -> None:
    many = "".join(f'x{{n="{n}"}} 1\n' for n in range(20_000))
    with serving({"/metrics": page(many)}) as base, pytest.raises(ScrapeError, match=r"parsing|timed out"):
        scrape([f"{base}/metrics"], timeout_seconds=0.05)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(ScrapeError, match=f"connection refused, nothing listens at 127.0.0.1:{port}"):
        scrape([f"http://127.0.0.1:{port}/metrics"])


@pytest.mark.parametrize("url", ["ftp://host/metrics", "metrics", "http://", "http://[::1/metrics"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ScrapeError, match="not a"):
        scrape([url])


def test_no_url_at_all() -> None:
    with pytest.raises(ScrapeError, match="at least one metrics URL"):
        scrape([])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://host:8000", "http://host:8000/metrics"),
        ("http://host:8000/", "http://host:8000/metrics"),
        ("http://host:8000/v1", "http://host:8000/metrics"),
        ("host:8000", "http://host:8000/metrics"),
        ("https://host/engine-1/metrics", "https://host/engine-1/metrics"),
    ],
)
def test_metrics_url(given: str, expected: str) -> None:
    assert metrics_url(given) == expected


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        samples, _ = parse_exposition(text.encode("utf-8", "surrogatepass"))
    except ExpositionError as error:
        assert str(error)  # noqa: PT017
    else:
        assert samples


@given(st.integers(min_value=1, max_value=len(PLAIN) - 1))
def test_a_page_cut_anywhere_never_gives_another_number(length: int) -> None:
    whole = {(s.name, str(s.labels)): s.value for s in parse_exposition(PLAIN.encode())[0]}
    try:
        part, _ = parse_exposition(PLAIN[:length].encode())
    except ExpositionError:
        return
    assert all(whole[s.name, str(s.labels)] == s.value for s in part)
