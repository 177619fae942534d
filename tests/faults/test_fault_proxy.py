"""The proxies break what passes through them, as asked, and behave again afterwards."""

from __future__ import annotations

import contextlib
import http.client
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pytest_kvoffload.faults.disk import invert
from pytest_kvoffload.faults.proxy import HttpFaultProxy, ProxyFault, TcpFaultProxy, _http_handler, _tcp_handler

BODY = bytes(range(256)) * 64


class _Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Range"):
            self.send_response(206)
            self.send_header("Content-Range", f"bytes 0-{len(BODY) - 1}/{len(BODY)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(BODY)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()

    def do_PUT(self) -> None:
        got = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(str(len(got)))))
        self.end_headers()
        self.wfile.write(str(len(got)).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1024):
            self.request.sendall(data)


@pytest.fixture
def store() -> Iterator[HttpFaultProxy]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Store) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with HttpFaultProxy(("127.0.0.1", server.server_address[1])) as proxy:
            assert isinstance(proxy, HttpFaultProxy)
            yield proxy
        server.shutdown()


def ask(
    proxy: HttpFaultProxy, method: str = "GET", body: bytes | None = None, *, key: str = "key"
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    try:
        connection.request(method, f"/bucket/{key}", body=body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_healthy_proxy_changes_nothing(store: HttpFaultProxy) -> None:
    assert ask(store) == (200, BODY)
    assert ask(store, "PUT", b"x" * 100_000) == (200, b"100000")
    connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=10)
    connection.request("HEAD", "/bucket/key")
    answer = connection.getresponse()
    assert answer.headers["Content-Length"] == str(len(BODY))
    assert answer.read() == b""
    connection.close()
    assert (store.seen, store.hurt) == (3, 0)


def test_a_body_in_chunks_arrives_whole_and_a_connection_is_kept(store: HttpFaultProxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=10)
    pieces = iter([b"x" * 70_000, b"y" * 30_000])
    connection.request("PUT", "/bucket/key", body=pieces, headers={"Transfer-Encoding": "chunked"}, encode_chunked=True)
    first = connection.sock
    assert connection.getresponse().read() == b"100000"
    connection.request("PUT", "/bucket/key", body=b"abc", headers={"Expect": "100-continue"})
    assert connection.getresponse().read() == b"3"
    assert connection.sock is first
    connection.close()


def test_an_error_is_answered_as_s3_words_it(store: HttpFaultProxy) -> None:
    store.break_with(ProxyFault(status=503, error_code="SlowDown"))
    status, body = ask(store, "PUT", b"data")
    assert status == 503
    assert b"<Code>SlowDown</Code>" in body
    assert store.hurt == 1
    store.heal()
    assert ask(store) == (200, BODY)
    assert store.hurt == 1


def test_a_download_is_cut_half_way_though_its_length_was_announced(store: HttpFaultProxy) -> None:
    store.break_with(ProxyFault(truncate=True))
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(store)
    assert len(cut.value.partial) == len(BODY) // 2
    assert ask(store, "PUT", b"data") == (200, b"4")


def test_every_second_object_comes_later_and_keeps_to_it(
    store: HttpFaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    store.break_with(ProxyFault(straggle_seconds=1.5))
    late: dict[str, set[bool]] = {}
    for key in [f"key-{number}" for number in range(8)] * 2:
        waited.clear()
        assert ask(store, key=key) == (200, BODY)
        late.setdefault(key, set()).add(1.5 in waited)
    assert {len(ways) for ways in late.values()} == {1}, "a retried download is as late as the first"
    assert {True} in late.values()
    assert {False} in late.values()
    waited.clear()
    assert ask(store, "PUT", b"data", key=next(key for key, ways in late.items() if ways == {True}))[0] == 200
    assert 1.5 not in waited


def test_a_short_object_is_complete_for_who_does_not_know_its_length(store: HttpFaultProxy) -> None:
    half = len(BODY) // 2
    store.break_with(ProxyFault(shorten=True))
    assert ask(store) == (200, BODY[:half])
    connection = http.client.HTTPConnection("127.0.0.1", store.port, timeout=10)
    connection.request("GET", "/bucket/key", headers={"Range": f"bytes=0-{len(BODY) - 1}"})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Range"]) == (206, f"bytes 0-{half - 1}/{half}")
    assert answer.read() == BODY[:half]
    connection.close()
    assert ask(store, "PUT", b"data") == (200, b"4")
    assert store.hurt == 2


def test_a_corrupted_download_is_whole_and_wrong(store: HttpFaultProxy) -> None:
    store.break_with(ProxyFault(corrupt=True))
    assert ask(store) == (200, invert(BODY))
    assert invert(invert(BODY)) == BODY


def test_refused_means_refused_and_open_connections_are_cut(store: HttpFaultProxy) -> None:
    held = http.client.HTTPConnection("127.0.0.1", store.port, timeout=10)
    held.request("GET", "/bucket/key")
    held.getresponse().read()
    store.break_with(ProxyFault(refuse=True))
    with pytest.raises(ConnectionRefusedError):
        ask(store)
    assert held.sock is not None
    assert held.sock.recv(1) == b""
    held.close()
    port = store.port
    store.heal()
    assert store.port == port
    assert ask(store) == (200, BODY)


def test_nobody_gets_the_port_while_it_is_closed(store: HttpFaultProxy) -> None:
    store.break_with(ProxyFault(refuse=True))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", store.port))
    store.break_with(ProxyFault(refuse=True))
    store.heal()
    assert ask(store) == (200, BODY)
    store.close()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", store.port))


@pytest.mark.parametrize("handler", [_http_handler, _tcp_handler])
def test_a_connection_that_came_in_just_before_the_port_was_closed_gets_nothing(
    store: HttpFaultProxy, handler: Callable[[object], type[socketserver.BaseRequestHandler]]
) -> None:
    store.break_with(ProxyFault(refuse=True))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs = listener.accept()[0]
    with ours, theirs:
        ours.settimeout(10)
        ours.sendall(b"GET /bucket/key HTTP/1.1\r\nHost: h\r\n\r\n")
        ours.shutdown(socket.SHUT_WR)
        handler(store)(theirs, ("127.0.0.1", 1), None)  # type: ignore[arg-type]
        theirs.close()
        with contextlib.suppress(ConnectionResetError):
            assert ours.recv(64) == b""


def test_bytes_pass_and_are_refused() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        upstream = server.server_address
        with TcpFaultProxy(("127.0.0.1", int(upstream[1]))) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
                client.sendall(b"PING")
                assert client.recv(16) == b"PING"
                assert proxy.seen == 1
                proxy.break_with(ProxyFault(refuse=True))
                assert client.recv(16) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
            proxy.heal()
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
                client.sendall(b"PONG")
                assert client.recv(16) == b"PONG"
        server.shutdown()
