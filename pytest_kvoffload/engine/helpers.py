"""Processes that a connector needs beside the server: started before it, watched, logged, stopped after it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_kvoffload.engine.connectors import HelperSpec
from pytest_kvoffload.engine.logs import tail
from pytest_kvoffload.engine.masking import mask_command, mask_text
from pytest_kvoffload.engine.processes import Process, port_holder, port_is_free
from pytest_kvoffload.engine.readback import local_session
from pytest_kvoffload.engine.server import HelperProcess, Supervision, describe_exit
from pytest_kvoffload.engine.supervise import reap, start_supervised
from pytest_kvoffload.errors import BootError, EngineError, ReadinessTimeoutError

_POLL_SECONDS = 0.1
_PROGRESS_SECONDS = 1.0

__all__ = ["Helper", "start_helpers", "stop_helpers"]


class Helper:
    """One such process. It ends with its owner, with :meth:`stop` or, for a fault, with :meth:`kill`."""

    def __init__(self, spec: HelperSpec, *, log: Path, owner: Process) -> None:
        self.spec, self.log, self.owner = spec, log, owner
        self.supervision: Supervision | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self, *, scratch: str | None = None, progress: Callable[[str], None] | None = None) -> None:
        """Start it and return once it is ready. After :meth:`kill` or :meth:`stop` it may be started again.

        Args:
            scratch: a directory that is removed when it has ended.
            progress: receives one line at a time.

        Raises:
            EngineError: its port is taken.
            BootError: it died; the message names the cause found in its log.
            ReadinessTimeoutError: it neither died nor became ready in time.
        """
        port = self.spec.ready_port
        if not port_is_free(port):
            raise EngineError(f"{self.spec.name}: port {port} on 127.0.0.1 is taken{port_holder(port)}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._supervisor, self.supervision = start_supervised(
            self.spec.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.env},
            log=self.log,
            scratch=[scratch] if scratch else [],
            owner=self.owner,
        )
        try:
            self._wait_until_ready(progress or (lambda line: None))
        except BaseException:
            self.stop()
            raise

    def alive(self) -> bool:
        """Whether it runs."""
        return self.supervision is not None and self.supervision.server_alive()

    def stop(self) -> None:
        """SIGTERM, wait, SIGKILL to all its processes. Safe to repeat."""
        if self.supervision is not None:
            self.supervision.end(wait=self._reap)

    def kill(self) -> None:
        """SIGKILL, as the kernel's out-of-memory killer would do it: no goodbye."""
        if self.supervision is None:
            return
        pid = self.supervision.status().get("server_pid")
        if isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self.supervision.end(wait=self._reap)

    def last_words(self) -> str:
        """How it ended and the last lines of its log, secrets masked."""
        code = self.supervision.status().get("exit_code") if self.supervision else None
        lines = "\n".join(f"    {line}" for line in mask_text(tail(self.log, 8)).splitlines())
        return f"{self.spec.name} ended ({describe_exit(code)}); log: {self.log}\n{lines}"

    def to_record(self) -> dict[str, Any]:
        """Everything another process needs to use it, as JSON-serialisable values."""
        import msgspec

        record: dict[str, Any] = msgspec.to_builtins(
            {"spec": self.spec, "log": str(self.log), "supervision": self.supervision}
        )
        return record

    @classmethod
    def adopt(cls, record: Mapping[str, Any]) -> Helper:
        """Use a helper that another process started; see :meth:`to_record`."""
        import msgspec

        supervision = msgspec.convert(record["supervision"], Supervision)
        helper = cls(msgspec.convert(record["spec"], HelperSpec), log=Path(record["log"]), owner=supervision.owner)
        helper.supervision = supervision
        return helper

    def _wait_until_ready(self, say: Callable[[str], None]) -> None:
        began = time.monotonic()
        next_word = began + _PROGRESS_SECONDS
        while not self._ready():
            assert self.supervision is not None
            assert self._supervisor is not None
            if self.supervision.status().get("exit_code") is not None or self._supervisor.poll() is not None:
                self._reap()
                code = self.supervision.status().get("exit_code")
                cause = tail(self.log, 1)
                if cause.startswith("# "):  # our own first line: it said nothing
                    cause = "its log names no cause"
                raise BootError(
                    cause=mask_text(f"{self.spec.name} did not start ({describe_exit(code)}): {cause}"),
                    remedy="read the lines below; the command can be run by hand",
                    **self._evidence(),
                )
            now = time.monotonic()
            if now - began > self.spec.timeout_seconds:
                raise ReadinessTimeoutError(
                    cause=f"{self.spec.name} is not ready after {self.spec.timeout_seconds:.0f} s, and still alive; it "
                    f"was waiting for {self.spec.ready_url or f'port {self.spec.ready_port} to accept'}",
                    remedy="read its log's last lines",
                    **self._evidence(),
                )
            if now >= next_word:
                next_word = now + _PROGRESS_SECONDS
                say(f"{self.spec.name}: {now - began:.0f} s, {mask_text(tail(self.log, 1))}")
            time.sleep(_POLL_SECONDS)
        say(f"{self.spec.name}: ready after {time.monotonic() - began:.0f} s")

    def _ready(self) -> bool:
        import requests

        if self.spec.ready_url is None:
            try:
                with socket.create_connection(("127.0.0.1", self.spec.ready_port), timeout=1):
                    return True
            except OSError:
                return False
        try:
            with local_session() as session:
                return session.get(self.spec.ready_url, timeout=2).status_code == 200
        except requests.RequestException:
            return False

    def _reap(self) -> None:
        reap(self._supervisor)

    def _evidence(self) -> dict[str, str]:
        return {
            "command": " ".join(mask_command(self.spec.command)),
            "log_path": str(self.log),
            "tail": mask_text(tail(self.log, 15)),
        }


def start_helpers(
    specs: Sequence[HelperSpec], *, run_dir: Path, owner: Process, state: Path, progress: Callable[[str], None]
) -> tuple[Helper, ...]:
    """Start them in order; when one fails, those already started are stopped again.

    ``state`` is removed when the first of them has ended, or at once when none starts.
    """
    started: list[Helper] = []
    try:
        for spec in specs:
            helper = Helper(spec, log=(run_dir / f"{spec.name}-{uuid.uuid4().hex[:6]}.log").absolute(), owner=owner)
            progress(f"{spec.name}: starting")
            helper.start(scratch=None if started else str(state), progress=progress)
            started.append(helper)
    except BaseException:
        stop_helpers(started)
        shutil.rmtree(state, ignore_errors=True)
        raise
    return tuple(started)


def stop_helpers(helpers: Sequence[HelperProcess]) -> None:
    """Stop them, the last one first."""
    for helper in reversed(helpers):
        helper.stop()
