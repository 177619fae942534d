"""A running server: is it alive, stop it, hand it to another process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from pytest_kvoffload.engine.guard import remove_shared_memory
from pytest_kvoffload.engine.logs import explain, tail
from pytest_kvoffload.engine.processes import Process
from pytest_kvoffload.errors import ServerDiedError
from pytest_kvoffload.records import ServerInfo

if TYPE_CHECKING:
    from pytest_kvoffload.engine.connectors import HelperSpec

STOP_GRACE_SECONDS = 15.0
"""How long a server may take to go after SIGTERM."""
GUARD_SECONDS = 30.0
"""What the guard gets on top, to kill what is left and to remove its shared memory; killed earlier it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How to watch and end a server that was booted: its guard, its status file, its engine id."""

    guard_pid: int
    guard_start: int | None
    status_path: str
    engine_id: str
    owner_pid: int
    owner_start: int | None

    @property
    def guard(self) -> Process:
        """The supervisor process."""
        return Process(self.guard_pid, self.guard_start)

    @property
    def owner(self) -> Process:
        """The process whose death ends the server."""
        return Process(self.owner_pid, self.owner_start)

    def status(self) -> dict[str, Any]:
        """What the guard last published, empty before that."""
        try:
            answer = json.loads(Path(self.status_path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}

    def server_alive(self) -> bool:
        """Whether the server still runs."""
        status = self.status()
        if status.get("exit_code") is not None or not self.guard.alive():
            return False
        # A server that died just now is a zombie until the guard, its parent, has collected it.
        pid = status.get("server_pid")
        return not isinstance(pid, int) or Process.of(pid).alive()

    def end(self, *, wait: Callable[[], object] | None = None) -> None:
        """Ask the guard to end the server and wait until both are gone; kill both when that takes too long.

        ``wait`` reaps the guard where it is a child of this process.
        """
        reap = wait or (lambda: None)
        server_pid = self.status().get("server_pid")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.guard.alive():
                os.kill(self.guard_pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_SECONDS + GUARD_SECONDS
        while self.guard.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.guard.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.guard_pid, signal.SIGKILL)
            if isinstance(server_pid, int):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(server_pid, signal.SIGKILL)
        reap()
        remove_shared_memory(self.engine_id)


class HelperProcess(Protocol):
    """What a running server must know of a process beside it; see :class:`.helpers.Helper`."""

    spec: HelperSpec
    log: Path

    def alive(self) -> bool:
        """Whether it runs."""

    def start(self, *, scratch: str | None = None, progress: Callable[[str], None] | None = None) -> None:
        """Start it (again)."""

    def stop(self) -> None:
        """End it."""

    def kill(self) -> None:
        """End it without a goodbye."""

    def last_words(self) -> str:
        """How it ended."""

    def to_record(self) -> dict[str, Any]:
        """What another process needs to use it."""


class RunningServer:
    """A server that answered ``/health`` with 200: booted by us, adopted from another process, or attached to.

    Use it as a context manager, or call :meth:`stop`. An adopted server may be stopped too; an attached one never is.
    """

    def __init__(
        self,
        info: ServerInfo,
        supervision: Supervision | None,
        *,
        on_stopped: Callable[[], object] | None = None,
        helpers: Sequence[HelperProcess] = (),
        ports: Mapping[str, int] | None = None,
        state: str = "",
    ) -> None:
        self.helpers = tuple(helpers)
        """Processes that were started beside it; they are stopped with it."""
        self.ports = dict(ports or {})
        """Ports of the helpers and of what the connector opens, by name."""
        self.state = state
        """The connector's scratch directory."""
        self.info = info
        self.supervision = supervision
        self._on_stopped = on_stopped
        self._stopped = False

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def alive(self) -> bool:
        """Whether the server runs (its process; for an attached one, whether ``/health`` answers 200).

        Behind a router every engine must run: one that is gone would be missing from every number.
        """
        if self._stopped:
            return False
        if self.supervision is None:
            return self._unhealthy() is None
        return self.supervision.server_alive()

    def check(self) -> None:
        """Raise unless the server is alive.

        Raises:
            ServerDiedError: names the first cause found in the log, and the log's last lines.
        """
        if self.alive():
            return
        if self.supervision is None:
            gone = self._unhealthy() or self.info.url
            raise ServerDiedError(f"the server at {gone} does not answer /health with 200 any more")
        if self._stopped:
            raise ServerDiedError(f"the server at {self.info.url} was stopped")
        # The engine core may write its last words after the API server is gone.
        _wait_until(lambda: not self.supervision.guard.alive() if self.supervision else True, 3.0)
        log = Path(self.info.log_path or "")
        code = self.supervision.status().get("exit_code")
        cause, remedy = explain(log, exit_code=code)
        text = f"the server died after it was ready ({describe_exit(code)}): {cause or 'its log names no cause'}"
        if remedy:
            text += f"\n  what to do: {remedy}"
        text += f"\n  log: {log}"
        lines = tail(log, 12)
        if lines:
            text += "\n  last lines:\n" + "\n".join(f"    {line}" for line in lines.splitlines())
        raise ServerDiedError(text)

    def _unhealthy(self) -> str | None:
        """The first URL of an attached server, or of an engine behind it, that does not answer."""
        return next((url for url in (self.info.url, *self.info.engine_urls) if not _healthy(url)), None)

    def dead_helpers(self) -> tuple[str, ...]:
        """The last words of each helper that is no longer alive."""
        return tuple(helper.last_words() for helper in self.helpers if not helper.alive())

    def stop(self, *, keep_helpers: bool = False) -> None:
        """End the server: SIGTERM, wait, SIGKILL to all its processes, remove its /dev/shm files. Idempotent.

        Its helpers are stopped after it, unless ``keep_helpers``: then a boot with ``previous`` uses them again, and
        stopping that server, or this one once more, stops them.
        """
        if not self._stopped:
            self._stopped = True
            if self.supervision is not None:
                try:
                    self.supervision.end(wait=self._on_stopped)
                except BaseException:
                    # Ctrl-C while waiting: the guard was told already and goes on; make sure of the files at least.
                    self._stopped = False
                    raise
        if not keep_helpers:
            for helper in reversed(self.helpers):
                helper.stop()

    def to_record(self) -> dict[str, Any]:
        """Everything another process needs to use this server, as JSON-serialisable values."""
        import msgspec

        record: dict[str, Any] = msgspec.to_builtins({"info": self.info, "supervision": self.supervision})
        return {
            **record,
            "helpers": [helper.to_record() for helper in self.helpers],
            "ports": self.ports,
            "state": self.state,
        }

    @classmethod
    def adopt(cls, record: Mapping[str, Any]) -> RunningServer:
        """Use a server that another process booted; see :meth:`to_record`."""
        import msgspec

        from pytest_kvoffload.engine.helpers import Helper

        supervision = record.get("supervision")
        return cls(
            msgspec.convert(record["info"], ServerInfo),
            None if supervision is None else msgspec.convert(supervision, Supervision),
            helpers=[Helper.adopt(helper) for helper in record.get("helpers", ())],
            ports=record.get("ports"),
            state=record.get("state", ""),
        )


def describe_exit(code: object) -> str:
    """``exit code 1``, ``killed by SIGKILL``, or that it is unknown."""
    if not isinstance(code, int):
        return "exit code unknown"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def _healthy(url: str) -> bool:
    import requests

    from pytest_kvoffload.engine.readback import local_session

    try:
        with local_session(trust_environment=True) as session:
            return session.get(f"{url}/health", timeout=5).status_code == 200
    except requests.RequestException:
        return False


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
