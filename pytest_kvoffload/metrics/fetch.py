"""One GET that always ends: bounded in time, in bytes and in redirects, with a reason a reader understands.

``requests`` limits each read of a socket, not the whole: a server that sends a byte a second would hold a scrape for
ever. The transfer therefore runs in a thread of its own and the caller waits for it no longer than the deadline.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_kvoffload.errors import ScrapeError

if TYPE_CHECKING:
    import requests

MAX_BYTES = 32 * 2**20
TIMEOUT_SECONDS = 5.0
_MAX_REDIRECTS = 3
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete answer, whatever its status."""

    url: str
    status: int
    content_type: str
    body: bytes


class _Fetch:
    """The transfer: runs in its thread and leaves a reply or an error in ``outcome``."""

    def __init__(self, url: str, params: Mapping[str, str], headers: Mapping[str, str], limits: tuple[float, int]):
        self.url, self.params, self.headers = url, params, headers
        self.timeout_seconds, self.max_bytes = limits
        self.deadline = time.monotonic() + self.timeout_seconds
        self.received_bytes = 0
        self.response: requests.Response | None = None
        self.outcome: queue.SimpleQueue[Reply | ScrapeError] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"scrape {url}", daemon=True).start()

    def wait(self) -> Reply:
        try:
            outcome = self.outcome.get(timeout=max(0.0, self.deadline - time.monotonic()))
        except queue.Empty:
            self._abandon()
            raise self._too_slow() from None
        if isinstance(outcome, ScrapeError):
            raise outcome
        return outcome

    def _abandon(self) -> None:
        """End a body that never ends (urllib3 2.3 and later); elsewhere the thread ends with the server's patience."""
        shutdown = getattr(self.response.raw, "shutdown", None) if self.response is not None else None
        if shutdown is not None:
            # The transfer may be over by now, and its socket closed.
            with contextlib.suppress(Exception):
                shutdown()

    def _too_slow(self) -> ScrapeError:
        # The bytes of a body that trickles in are not counted until a chunk is full: only its beginning is known.
        got = "a body that never ended" if self.response is not None else "no complete answer"
        return ScrapeError(self.url, f"timed out after {self.timeout_seconds:g} s with {got}")

    def _run(self) -> None:
        try:
            self.outcome.put(self._transfer())
        except ScrapeError as error:
            self.outcome.put(error)
        except Exception as error:
            # Whatever a library throws in this thread has to reach the waiting caller as a reason.
            self.outcome.put(ScrapeError(self.url, _reason(error, self)))

    def _transfer(self) -> Reply:
        import requests

        with requests.Session() as session:
            session.max_redirects = _MAX_REDIRECTS
            # A proxy configured for the outside world cannot reach a server on this machine.
            session.trust_env = not _is_loopback(self.url)
            with session.get(
                self.url,
                params=dict(self.params),
                headers=dict(self.headers),
                timeout=self.timeout_seconds,
                stream=True,
            ) as response:
                self.response = response
                return Reply(
                    url=self.url,
                    status=response.status_code,
                    content_type=response.headers.get("Content-Type", ""),
                    body=self._body(response),
                )

    def _body(self, response: requests.Response) -> bytes:
        announced = response.headers.get("Content-Length", "")
        if announced.isdigit() and int(announced) > self.max_bytes:
            raise self._too_large(f"announces {int(announced)} bytes")
        parts = []
        for part in response.iter_content(_CHUNK_BYTES):
            self.received_bytes += len(part)
            if self.received_bytes > self.max_bytes:
                raise self._too_large(f"sent more than {self.max_bytes} bytes")
            if time.monotonic() > self.deadline:
                raise self._too_slow()
            parts.append(part)
        return b"".join(parts)

    def _too_large(self, what: str) -> ScrapeError:
        return ScrapeError(
            self.url, f"the server {what}, the limit is {self.max_bytes} ({self.max_bytes / 2**20:g} MiB)"
        )


def get(
    url: str,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    max_bytes: int = MAX_BYTES,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """GET a URL and return the whole answer.

    Args:
        url: ``http`` or ``https``.
        timeout_seconds: for everything together, greater than zero: connect, redirects, headers, body.
        max_bytes: largest body accepted, after decompression.
        params: query parameters.
        headers: request headers.

    Raises:
        ScrapeError: no complete answer within the bounds; the message says why. A status other than 200 is an answer.
    """
    return get_all([url], timeout_seconds=timeout_seconds, max_bytes=max_bytes, params=params, headers=headers)[0]


def get_all(
    urls: list[str],
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    max_bytes: int = MAX_BYTES,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[Reply]:
    """GET several URLs at the same time, so that one deadline covers them all; see :func:`get`."""
    for url in urls:
        _check_url(url)
    transfers = [_Fetch(url, params or {}, headers or {}, (timeout_seconds, max_bytes)) for url in urls]
    return [transfer.wait() for transfer in transfers]


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ScrapeError(url, f"not a URL: {error}") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise ScrapeError(url, "not an http:// or https:// URL")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reason(error: Exception, fetch: _Fetch) -> str:
    import requests

    place = urlsplit(fetch.url).netloc
    text = str(error)
    if isinstance(error, requests.exceptions.SSLError):
        return f"TLS with {place} failed: {text}"
    if isinstance(error, requests.exceptions.TooManyRedirects):
        return f"more than {_MAX_REDIRECTS} redirects"
    if isinstance(error, requests.exceptions.Timeout) or "timed out" in text:
        return str(fetch._too_slow().reason)
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"the body was cut off after {fetch.received_bytes} bytes"
    if isinstance(error, requests.exceptions.ContentDecodingError):
        return "the body is not compressed the way its header says"
    if isinstance(error, requests.exceptions.ConnectionError):
        if "refused" in text:
            return f"connection refused, nothing listens at {place}"
        if "resolve" in text or "Name or service" in text:
            return f"the host name of {place} is not known"
        return f"the connection to {place} broke: {_innermost(error)}"
    return f"{type(error).__name__}: {text}"


def _innermost(error: BaseException) -> str:
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__
