"""Helpers of the metrics tests: snapshots from text, and a page server that can misbehave."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pytest_kvoffload.metrics.exposition import parse_exposition
from pytest_kvoffload.records import Sample, Snapshot

DATA = Path(__file__).with_name("data")
URL = "http://vllm.test/metrics"

Answer = Callable[[BaseHTTPRequestHandler], None]


def snapshot(text: str, *, at_seconds: float = 0.0, url: str = URL, content_type: str = "text/plain") -> Snapshot:
    """Return what :func:`pytest_kvoffload.metrics.scrape.scrape` would have made of a page."""
    samples, families = parse_exposition(text.encode(), content_type=content_type)
    return Snapshot(
        taken_at_seconds=at_seconds,
        wall_time="2026-01-01T00:00:00.000+00:00",
        urls=(url,),
        samples=tuple(
            Sample(name=s.name, labels={**s.labels, "endpoint": url}, value=s.value, kind=s.kind) for s in samples
        ),
        families=families,
    )


def recorded(name: str, stage: str, *, at_seconds: float = 0.0) -> Snapshot:
    """Return a recorded page of a real server: ``0.32.0-host`` at ``cold``, say."""
    return replace(_parsed(name, stage), taken_at_seconds=at_seconds)


@functools.cache
def _parsed(name: str, stage: str) -> Snapshot:
    return snapshot((DATA / name / f"{stage}.prom").read_text())


def page(body: bytes | str, *, status: int = 200, content_type: str = "text/plain; version=0.0.4") -> Answer:
    """Answer with a page."""
    raw = body.encode() if isinstance(body, str) else body

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", content_type)
        request.send_header("Content-Length", str(len(raw)))
        request.end_headers()
        request.wfile.write(raw)

    return answer


def cut_off(body: str, *, announced: int) -> Answer:
    """Announce more bytes than are sent, then close."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/plain")
        request.send_header("Content-Length", str(announced))
        request.end_headers()
        request.wfile.write(body.encode())
        request.close_connection = True

    return answer


def flood(total_bytes: int, *, announce: bool) -> Answer:
    """Send valid lines until so many bytes are out."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/plain")
        if announce:
            request.send_header("Content-Length", str(total_bytes))
        request.end_headers()
        line = b'flood_total{n="0"} 1\n' * 1000
        for _ in range(total_bytes // len(line)):
            request.wfile.write(line)
        request.close_connection = True

    return answer


def dribble(stop: threading.Event, *, in_headers: bool) -> Answer:
    """Send a byte now and then, for ever."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        if not in_headers:
            request.send_response(200)
            request.end_headers()
        else:
            request.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
        while not stop.is_set():
            request.wfile.write(b"a")
            request.wfile.flush()
            time.sleep(0.02)

    return answer


def silent(stop: threading.Event) -> Answer:
    """Accept and never answer."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        stop.wait()

    return answer


@contextmanager
def serving(answers: dict[str, Answer]) -> Iterator[str]:
    """Serve each path with its answer on a free loopback port; yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, _ = self.path.partition("?")
            try:
                answers.get(path, page("not found\n", status=404))(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
