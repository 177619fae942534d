"""Ports that must be free, and servers that must be listening."""

from __future__ import annotations

import errno
import socket

from pytest_kvoffload.engine.preflight.report import Check

_TIMEOUT_SECONDS = 3.0


def check_port(port: int, *, host: str = "127.0.0.1") -> Check:
    """Whether a server could listen there, and who does where it could not."""
    name = f"port {port}"
    needed = f"free on {host}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As vLLM does: a port whose last connection is merely waiting for its time to pass is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError:
            return Check(name=name, status="fail", saw="no such port", needed="0 to 65535", remedy="correct the port")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Check(
                    name=name,
                    status="fail",
                    saw=f"in use{_holder(port)}",
                    needed=needed,
                    remedy="end that process, or leave the port to the kernel",
                )
            return Check(
                name=name,
                status="fail",
                saw=f"cannot be bound: {error.strerror or error}",
                needed=needed,
                remedy="correct host and port; ports below 1024 need privileges",
            )
    return Check(name=name, status="ok", saw="free", needed=needed)


def check_server(name: str, host: str, port: int) -> Check:
    """Whether something listens at ``host:port`` (an LMCache server, a remote store)."""
    title = f"{name} {host}:{port}"
    needed = "listening before the boot"
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS):
            return Check(name=title, status="ok", saw="listening", needed=needed)
    except OSError as error:
        return Check(
            name=title,
            status="fail",
            saw=f"unreachable: {error.strerror or error}",
            needed=needed,
            remedy="start it first, or correct host and port in the connector's configuration",
        )


def _holder(port: int) -> str:
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    return " by a process of another user"
                return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except (psutil.Error, OSError):
        pass
    return ""
