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
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import h11

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
    straggle_seconds: float = 0.0
    """Downloads of every second object come so much later than the others."""
    shorten: bool = False
    """Downloads are answered as if the object were half as long: complete, and of a length that says so."""
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
        self._place: socket.socket | None = None
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
            self._keep_port()
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
        self._give_port_up()

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
        self._give_port_up()

    def _keep_port(self) -> None:
        """Hold the port without listening, so that no other socket of this machine gets it until it is opened again."""
        if self._place is None:
            self._place = socket.socket()
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", self.port))

    def _give_port_up(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None

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

    def entered(self, connection: socket.socket) -> bool:
        """A connection was accepted (called by the handlers); return whether it may go on."""
        with self._lock:
            self._connections.add(connection)
        return not self.fault.refuse  # one that came in just before the port was closed

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
        return _TcpServer(("127.0.0.1", port), _http_handler(self))


class TcpFaultProxy(_Proxy):
    """Passes bytes on to ``upstream``."""

    def _make_server(self, port: int) -> socketserver.TCPServer:
        return _TcpServer(("127.0.0.1", port), _tcp_handler(self))


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that was cut is what this is for."""


def _http_handler(proxy: HttpFaultProxy) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = h11.Connection(h11.SERVER)
            go_on = proxy.entered(client)
            try:
                while go_on and _one_request(proxy, client, connection):
                    connection.start_next_cycle()
            except (OSError, h11.ProtocolError, http.client.HTTPException):
                return  # either side went away: cutting the connection is what the other one then sees
            finally:
                proxy.left(client)

    return Handler


def _one_request(proxy: HttpFaultProxy, client: socket.socket, connection: h11.Connection) -> bool:
    """Serve one request of a connection; return whether another one may follow."""
    asked = _read_request(client, connection)
    if asked is None:
        return False
    request, body = asked
    method = request.method.decode()
    fault = proxy.fault
    download = method == "GET"
    hurts = fault.latency_seconds > 0 or fault.status is not None
    proxy.count(hurt=hurts or (download and (fault.truncate or fault.shorten or fault.corrupt)))
    time.sleep(fault.latency_seconds)
    if fault.status is not None:
        _answer(client, connection, fault.status, [(b"Content-Type", b"application/xml")], _s3_error(fault), method)
        return _may_go_on(connection)
    status, headers, answer, length = _ask_upstream(proxy.upstream, request, body)
    if download and zlib.crc32(request.target) % 2:
        time.sleep(fault.straggle_seconds)
    if download and fault.corrupt:
        answer = invert(answer)
    if download and fault.shorten and status in (200, 206) and len(answer) > 1:
        answer, length = answer[: len(answer) // 2], len(answer) // 2
        headers = [(key, value) for key, value in headers if key.lower() != b"content-range"]
        if status == 206:
            headers.append((b"Content-Range", f"bytes 0-{length - 1}/{length}".encode()))
    if download and fault.truncate and len(answer) > 1:
        answer = answer[: len(answer) // 2]
    _answer(client, connection, status, headers, answer, method, length=length)
    return _may_go_on(connection)


def _may_go_on(connection: h11.Connection) -> bool:
    """Whether both sides ended their message and keep the connection."""
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


def _read_request(client: socket.socket, connection: h11.Connection) -> tuple[h11.Request, bytes] | None:
    """Read one request whole, however its body is framed; ``None`` when the client has gone."""
    request: h11.Request | None = None
    body: list[bytes] = []
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[])
                client.sendall(connection.send(go_on))
            connection.receive_data(client.recv(65536))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            return request, b"".join(body)
        else:
            return None


def _ask_upstream(
    upstream: tuple[str, int], request: h11.Request, body: bytes
) -> tuple[int, list[tuple[bytes, bytes]], bytes, int]:
    connection = http.client.HTTPConnection(*upstream, timeout=UPSTREAM_TIMEOUT_SECONDS)
    try:
        connection.putrequest(
            request.method.decode(), request.target.decode(), skip_host=True, skip_accept_encoding=True
        )
        for key, value in request.headers:
            if key.decode() not in HOP_BY_HOP and key != b"content-length":
                connection.putheader(key.decode(), value)
        if body or request.method in (b"PUT", b"POST"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        got = connection.getresponse()
        answer = got.read()
        headers = [(key.encode(), value.encode()) for key, value in got.headers.items()]
        # The answer to HEAD announces a length and has no body.
        return got.status, headers, answer, int(got.headers.get("Content-Length") or len(answer))
    finally:
        connection.close()


def _answer(
    client: socket.socket,
    connection: h11.Connection,
    status: int,
    headers: Sequence[tuple[bytes, bytes]],
    body: bytes,
    method: str,
    *,
    length: int | None = None,
) -> None:
    """Send an answer. One that is shorter than ``length`` ends the connection half-way."""
    announced = len(body) if length is None else length
    kept = [(key, value) for key, value in headers if key.decode().lower() not in (*HOP_BY_HOP, "content-length")]
    response = h11.Response(status_code=status, headers=[*kept, (b"Content-Length", str(announced).encode())])
    raw = connection.send(response) or b""
    if method == "HEAD":
        client.sendall(raw + (connection.send(h11.EndOfMessage()) or b""))
        return
    client.sendall(raw + (connection.send(h11.Data(data=body)) or b""))
    if len(body) == announced:
        client.sendall(connection.send(h11.EndOfMessage()) or b"")


def _s3_error(fault: ProxyFault) -> bytes:
    code = fault.error_code or "InternalError"
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'.encode()


def _tcp_handler(proxy: TcpFaultProxy) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            go_on = proxy.entered(client)
            try:
                if not go_on:
                    return
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
