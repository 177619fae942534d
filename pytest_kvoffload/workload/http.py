"""Plain requests to the server under test."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import requests


def post(
    url: str,
    *,
    json: Any = None,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float,
) -> requests.Response:
    """POST; a server on this machine is never asked through a proxy that the environment names.

    Raises:
        requests.RequestException: no answer.
    """
    return _send("POST", url, json=json, params=params, headers=headers, timeout_seconds=timeout_seconds)


def delete(url: str, *, timeout_seconds: float) -> requests.Response:
    """DELETE, with the same care for proxies.

    Raises:
        requests.RequestException: no answer.
    """
    return _send("DELETE", url, timeout_seconds=timeout_seconds)


def _send(method: str, url: str, *, timeout_seconds: float, **how: Any) -> requests.Response:
    import requests

    with requests.Session() as session:
        session.trust_env = not is_loopback(url)
        return session.request(method, url, timeout=timeout_seconds, **how)


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
