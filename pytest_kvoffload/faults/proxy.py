"""Loopback proxies that stand between a server and its remote tier, and break on demand.

:class:`HttpFaultProxy` understands requests and answers (an object store); :class:`TcpFaultProxy` passes bytes (redis,
a cache server). Both live in threads of this process, so they end with it.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pytest_kvoffload.faults.disk import invert

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "expect"})
UPSTREAM_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFault:
    """How a proxy misbehaves. The default is a proxy that does not."""

    refuse: bool = False
    """Nothing listens, and open connections are cut: what is seen when the other side is gone."""
    latency_seconds: float = 0.0
    """Added to each request (HTTP), or to each piece sent towards the remote side (TCP)."""
    status: int | None = None
    """Answered to every request instead of passing it on."""
    error_code: str = ""
    """The ``<Code>`` of the S3 error that goes with ``status``."""
    truncate: bool = False
    """Bodies of downloads end half-way, with the connection cut, though their length was announced in full."""
    corrupt: bool = False
    """Bodies of downloads arrive whole and wrong, every byte inverted."""


HEALTHY = ProxyFault()


class _Proxy:
    """What both have in common: a port that can be closed and opened again, and open connections that can be cut."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.fault = HEALTHY
        self.seen = self.hurt = 0
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server: socketserver.TCPServer | None = None
        self._thread: threading.Thread | None = None
        self.port = 0
        self._listen()

    def __enter__(self) -> _Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def break_with(self, fault: ProxyFault) -> None:
        """Misbehave so from now on; ``hurt`` counts what was hit."""
        self.hurt = 0
        self.fault = fault
        if fault.refuse:
            self._stop_listening()
        else:
            self._listen()

    def heal(self) -> None:
        """Behave again."""
        hurt = self.hurt
        self.break_with(HEALTHY)
        self.hurt = hurt

    def close(self) -> None:
        """Stop for good. Safe to repeat."""
        self._stop_listening()

    def _make_server(self, port: int) -> socketserver.TCPServer:
        raise NotImplementedError

    def _listen(self) -> None:
        if self._server is not None:
            return
        self._server = self._make_server(self.port)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name=f"kvoffload-proxy-{self.port}", daemon=True
        )
        self._thread.start()

    def _stop_listening(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = self._thread = None
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            open_now = list(self._connections)
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def entered(self, connection: socket.socket) -> None:
        """A connection was accepted (called by the handlers)."""
        with self._lock:
            self._connections.add(connection)

    def left(self, connection: socket.socket) -> None:
        """A connection is over (called by the handlers)."""
        with self._lock:
            self._connections.discard(connection)

    def count(self, *, hurt: bool) -> None:
        """One more request or piece (called by the handlers)."""
        with self._lock:
            self.seen += 1
            self.hurt += hurt


class HttpFaultProxy(_Proxy):
    """Passes HTTP/1.1 requests on to ``upstream``, whose plain HTTP port it is given."""

    @property
    def endpoint(self) -> str:
        """``host:port`` to be used instead of the upstream's."""
        return f"127.0.0.1:{self.port}"

    def _make_server(self, port: int) -> socketserver.TCPServer:
        return _HttpServer(("127.0.0.1", port), _http_handler(self))


class TcpFaultProxy(_Proxy):
    """Passes bytes on to ``upstream``."""

    def _make_server(self, port: int) -> socketserver.TCPServer:
        return _TcpServer(("127.0.0.1", port), _tcp_handler(self))


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that was cut is what this is for."""


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that was cut is what this is for."""


def _http_handler(proxy: HttpFaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            proxy.entered(self.connection)

        def finish(self) -> None:
            proxy.left(self.connection)
            super().finish()

        def log_message(self, format: str, *args: object) -> None:
            """The proxy keeps no access log: signatures and tokens are in its lines."""

        def _pass_on(self) -> None:
            fault = proxy.fault
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            download = self.command == "GET"
            hurts = fault.latency_seconds > 0 or fault.status is not None
            hurts = hurts or (download and (fault.truncate or fault.corrupt))
            proxy.count(hurt=hurts)
            time.sleep(fault.latency_seconds)
            if fault.status is not None:
                self._answer(fault.status, {"Content-Type": "application/xml"}, _s3_error(fault))
                return
            try:
                status, headers, answer, length = self._ask_upstream(body)
            except (OSError, http.client.HTTPException):
                self.close_connection = True
                return
            if download and fault.corrupt:
                answer = invert(answer)
            if download and fault.truncate and len(answer) > 1:
                self._answer(status, headers, answer[: len(answer) // 2], length=len(answer))
                self.close_connection = True
                return
            self._answer(status, headers, answer, length=length)

        def _ask_upstream(self, body: bytes) -> tuple[int, dict[str, str], bytes, int]:
            upstream = http.client.HTTPConnection(*proxy.upstream, timeout=UPSTREAM_TIMEOUT_SECONDS)
            try:
                headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP_BY_HOP}
                upstream.request(self.command, self.path, body=body or None, headers=headers)
                got = upstream.getresponse()
                answer = got.read()
                # The answer to HEAD announces a length and has no body.
                length = int(got.headers.get("Content-Length") or len(answer))
                return got.status, dict(got.headers.items()), answer, length
            finally:
                upstream.close()

        def _answer(self, status: int, headers: Mapping[str, str], body: bytes, *, length: int | None = None) -> None:
            self.send_response_only(status)
            for key, value in headers.items():
                if key.lower() not in HOP_BY_HOP and key.lower() != "content-length":
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815  # the names that http.server calls

    return Handler


def _s3_error(fault: ProxyFault) -> bytes:
    code = fault.error_code or "InternalError"
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'.encode()


def _tcp_handler(proxy: TcpFaultProxy) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            proxy.entered(client)
            try:
                with socket.create_connection(proxy.upstream, timeout=UPSTREAM_TIMEOUT_SECONDS) as upstream:
                    upstream.settimeout(None)
                    back = threading.Thread(target=_pump, args=(upstream, client, None), daemon=True)
                    back.start()
                    _pump(client, upstream, proxy)
                    back.join(5.0)
            except OSError:
                return
            finally:
                proxy.left(client)

    return Handler


def _pump(source: socket.socket, target: socket.socket, proxy: TcpFaultProxy | None) -> None:
    """Copy until one side ends; towards the remote side with the fault's latency."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if proxy is not None:
                latency = proxy.fault.latency_seconds
                proxy.count(hurt=latency > 0)
                time.sleep(latency)
            target.sendall(data)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
