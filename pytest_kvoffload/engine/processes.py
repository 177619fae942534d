"""Process identity that survives pid reuse, and small helpers around it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pytest_kvoffload.engine.guard import start_ticks

__all__ = ["Process", "free_port", "port_holder", "port_is_free", "this_process"]


class Process:
    """A process named by pid and start time: another one that got the same pid later is not it."""

    __slots__ = ("pid", "start")

    def __init__(self, pid: int, start: int | None) -> None:
        self.pid, self.start = pid, start

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this pid now."""
        return cls(pid, start_ticks(pid))

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return self.start is not None and start_ticks(self.pid) == self.start

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Process) and (self.pid, self.start) == (other.pid, other.start)

    def __hash__(self) -> int:
        return hash((self.pid, self.start))

    def command(self, width: int = 120) -> str:
        """Its command line, secrets masked, cut to ``width``."""
        from pytest_kvoffload.engine.masking import mask_command

        try:
            raw = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return "unknown command"
        words = [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]
        line = " ".join(mask_command(words)) or "unknown command"
        return line if len(line) <= width else line[: width - 3] + "..."


def this_process() -> Process:
    """The running process."""
    return Process.of(os.getpid())


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that the kernel says is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now (a port in TIME_WAIT counts as free, as it does for a server)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def port_holder(port: int) -> str:
    """Who listens on a port, as ``" by pid 12 (command)"``; empty when it cannot be seen."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid:
                    return f" by pid {connection.pid} ({Process.of(connection.pid).command(80)})"
                return ""
    except (psutil.Error, OSError):
        pass
    return ""
