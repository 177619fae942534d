"""The servers and measurements of one run: one boot per distinct configuration, one measurement per workload.

Everything lies in the run's directory, so that the processes of a run (pytest-xdist workers) share it::

    <run>/engine.lock             held while a server boots, is measured or is used by a test
    <run>/servers/<key>/          log and server.json of one configuration
    <run>/measurements/<key>.json one measurement, complete or not
    <run>/failures/<key>.txt      a boot that failed, so that it is not tried again by the next test

At most ``max_live`` servers of ours are alive at a time, by default one: two would share the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Protocol as TypingProtocol

from pytest_kvoffload.errors import EngineError, TierDegradedError, UsageError
from pytest_kvoffload.records import (
    ConnectorConfig,
    EngineConfig,
    Measurement,
    ModelConfig,
    WorkloadConfig,
    measurement_from_json,
    to_json,
)

if TYPE_CHECKING:
    from pytest_kvoffload.engine import RunningServer
    from pytest_kvoffload.probe import Progress as PhaseProgress

__all__ = ["Arm", "Progress", "RunSession", "SilentProgress"]


class Progress(TypingProtocol):
    """Where a run says what it is doing while something takes long."""

    def line(self, text: str) -> None:
        """Say what is going on (a boot, an installation); called about once a second."""

    def phase(self, progress: PhaseProgress) -> None:
        """Say how far a phase has come; called about twice a second."""

    def clear(self) -> None:
        """What was long is over."""


class SilentProgress:
    """Says nothing."""

    def line(self, text: str) -> None:
        """Say nothing."""

    def phase(self, progress: PhaseProgress) -> None:
        """Say nothing."""

    def clear(self) -> None:
        """Clear nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration under test: what is booted, or attached to."""

    engine: EngineConfig
    model: ModelConfig
    connector: ConnectorConfig
    label: str = ""
    """Name of the arm where two arms may be alike (A against A); the connector's name otherwise."""
    boot: int = 0
    """Which boot of the same configuration: the gate boots an arm several times."""

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.label or self.connector.name

    @property
    def key(self) -> str:
        """Name of the arm and a digest of everything that makes it distinct; safe as a file name."""
        safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.name)
        return f"{safe}-{_digest(self)}"


class RunSession:
    """Boots, shares, measures and stops; see the module's page.

    Args:
        run_dir: directory of the run; made when first needed.
        owner_pid: the process whose end is the servers' end; ``None`` is this one.
        progress: where to say what takes long.
        before_boot: called with the arm before its server boots; raises to refuse the boot.
        owns_servers: whether :meth:`close` stops the servers (``False`` in an xdist worker: the controller does).
        max_live: how many booted servers may be alive at a time.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        owner_pid: int | None = None,
        progress: Progress | None = None,
        before_boot: Callable[[Arm], None] | None = None,
        owns_servers: bool = True,
        max_live: int = 1,
    ) -> None:
        self.run_dir = run_dir
        self.progress: Progress = progress or SilentProgress()
        self._owner_pid = owner_pid
        self._before_boot = before_boot
        self._owns_servers = owns_servers
        self._max_live = max_live
        self._own: dict[str, RunningServer] = {}
        self._failed: dict[str, EngineError] = {}
        self._depth = 0

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the run's engine: no other process of the run boots, measures or stops a server meanwhile."""
        from filelock import FileLock

        self.run_dir.mkdir(parents=True, exist_ok=True)
        if self._depth == 0:
            lock = FileLock(self.run_dir / "engine.lock", thread_local=False)
            lock.acquire()
            self._lock = lock
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._lock.release()

    def server(self, arm: Arm) -> RunningServer:
        """Return the arm's running server, booting it if need be. Call inside :meth:`exclusive`.

        Raises:
            EngineError: it did not boot, now or earlier in this run.
        """
        from pytest_kvoffload import engine as engine_room

        key = arm.key
        known = self._own.get(key)
        if known is not None:
            if known.alive():
                return known
            del self._own[key]
        if arm.engine.kind == "attach":
            self._own[key] = engine_room.attach(arm.engine, model=arm.model)
            return self._own[key]
        record = self._server_dir(key) / "server.json"
        if record.exists():
            server = engine_room.RunningServer.adopt(json.loads(record.read_bytes()))
            if server.alive():
                self._own[key] = server
                return server
            record.unlink()
        self._refuse_known_failure(key)
        self._make_room()
        if self._before_boot is not None:
            self.progress.line(f"{arm.name}: checking before the boot")
            try:
                self._before_boot(arm)
            finally:
                self.progress.clear()
        return self._boot(arm)

    def ready(self, arm: Arm) -> None:
        """Boot the arm's server if it does not run, so that what is measured next waits for no boot.

        Raises:
            EngineError: it did not boot, now or earlier in this run.
        """
        with self.exclusive():
            self.server(arm)

    def warm_up(self, arm: Arm, workload: WorkloadConfig) -> None:
        """Replay a workload on the arm's server and keep nothing of it.

        For some seconds after a boot requests are slower, whichever server they go to. Where each measurement boots a
        server of its own anyway, because its tier cannot be emptied, nothing is sent.

        Raises:
            EngineError: the server did not boot, or died.
            WorkloadError: the workload proves nothing on this server.
        """
        with self.exclusive():
            server = self.server(arm)
            if arm.engine.kind == "attach" or any(clear.action == "new_server" for clear in server.info.clears):
                return
            try:
                self._probe(server, arm, workload)
            finally:
                self.progress.clear()

    def _server_with_empty_tier(self, arm: Arm) -> RunningServer:
        """Return the arm's server; a new one where a tier that cannot be emptied may hold something."""
        from pytest_kvoffload.probe import is_new

        server = self.server(arm)
        if not any(clear.action == "new_server" for clear in server.info.clears) or is_new(server.info):
            return server
        self.progress.line(f"{arm.name}: its tier cannot be emptied, so a new server is booted")
        server.stop()
        self._own.pop(arm.key, None)
        (self._server_dir(arm.key) / "server.json").unlink(missing_ok=True)
        return self.server(arm)

    def _restart(self, arm: Arm) -> RunningServer:
        """Stop the arm's server and boot it again; the processes beside it, which may hold the tier, live on."""
        server = self.server(arm)
        server.stop(keep_helpers=True)
        try:
            return self._boot(arm, previous=server)
        except BaseException:
            server.stop()
            raise

    def _boot(self, arm: Arm, *, previous: RunningServer | None = None) -> RunningServer:
        from pytest_kvoffload import engine as engine_room

        key = arm.key
        record = self._server_dir(key) / "server.json"
        self.progress.line(f"{arm.name}: starting vLLM")
        try:
            server = engine_room.boot(
                engine=arm.engine,
                model=arm.model,
                connector=arm.connector,
                run_dir=self._server_dir(key),
                progress=self.progress.line,
                owner_pid=self._owner_pid,
                previous=previous,
            )
        except EngineError as error:
            self._remember_failure(key, error)
            raise
        finally:
            self.progress.clear()
        # For this user alone, and gone with the server: another process needs a helper's environment, keys included.
        _write(record, json.dumps(server.to_record()).encode(), mode=0o600)
        self._own[key] = server
        return server

    def measure(self, arm: Arm, workload: WorkloadConfig) -> Measurement:
        """Return the measurement of a workload on an arm; it is taken once in a run.

        Raises:
            EngineError: the server did not boot, died, or runs without its tier; what was measured is written down.
            WorkloadError: the workload proves nothing on this server.
            MeasurementInterrupted: Ctrl-C; what was measured until then has been written down.
        """
        from pytest_kvoffload import probe

        path = self.run_dir / "measurements" / f"{arm.key}-{_digest(workload)}.json"
        with self.exclusive():
            if path.exists():
                measurement = measurement_from_json(path.read_bytes())
                if measurement.complete:
                    return measurement
            server = self._server_with_empty_tier(arm)
            try:
                measurement = self._probe(server, arm, workload)
            except (probe.MeasurementInterrupted, probe.MeasurementDiedError) as end:
                self._write_measurement(path, end.partial)
                raise
            finally:
                self.progress.clear()
            measurement = self._write_measurement(path, measurement)
            _refuse_degraded(measurement)
            _refuse_dead_helpers(measurement, self._own.get(arm.key))
            return measurement

    def _probe(self, server: RunningServer, arm: Arm, workload: WorkloadConfig) -> Measurement:
        from pytest_kvoffload import probe

        def restart() -> RunningServer:
            if arm.engine.kind == "attach":
                raise UsageError("mode 'restart' cannot restart an attached server: boot it with kind 'cpu' or 'local'")
            return self._restart(arm)

        return probe.measure(
            server,
            arm=arm.name,
            connector=arm.connector,
            workload=workload,
            progress=self.progress.phase,
            restart=restart,
            request_timeout_seconds=arm.engine.request_timeout_seconds,
        )

    def measurements(self) -> tuple[list[Measurement], list[str]]:
        """Return what has been measured in this run, by any of its processes, in the order of time.

        The second list says of each file that could not be read why.
        """
        found, problems = [], []
        for path in sorted((self.run_dir / "measurements").glob("*.json")):
            try:
                found.append(measurement_from_json(path.read_bytes()))
            except (OSError, ValueError) as error:
                problems.append(f"{path}: {error}")
        return sorted(found, key=lambda m: m.started_at), problems

    def close(self) -> None:
        """Stop every server of the run (the owner), or let go of them (a worker). Safe to repeat."""
        if self._owns_servers:
            self.stop_servers()
        self._own.clear()

    def stop_servers(self) -> None:
        """Stop the servers that this run booted, whichever process did; measurements stay."""
        self._stop_oldest(keep=0)

    def _make_room(self) -> None:
        self._stop_oldest(keep=self._max_live - 1)

    def _stop_oldest(self, *, keep: int) -> None:
        from pytest_kvoffload import engine as engine_room

        records = sorted((self.run_dir / "servers").glob("*/server.json"), key=lambda p: p.stat().st_mtime)
        for record in records[: max(0, len(records) - keep)]:
            server = self._own.pop(record.parent.name, None)
            if server is None:
                server = engine_room.RunningServer.adopt(json.loads(record.read_bytes()))
            server.stop()
            record.unlink(missing_ok=True)

    def _server_dir(self, key: str) -> Path:
        return self.run_dir / "servers" / key

    def _remember_failure(self, key: str, error: EngineError) -> None:
        self._failed[key] = error
        _write(self.run_dir / "failures" / f"{key}.txt", str(error).encode())

    def _refuse_known_failure(self, key: str) -> None:
        if key in self._failed:
            raise self._failed[key]
        note = self.run_dir / "failures" / f"{key}.txt"
        if note.exists():
            raise EngineError(note.read_text())

    def _write_measurement(self, path: Path, measurement: Measurement) -> Measurement:
        artefacts: Mapping[str, str] = {**measurement.artefacts, "measurement": str(path)}
        if measurement.server.log_path:
            artefacts = {**artefacts, "server log": measurement.server.log_path}
        measurement = dataclasses.replace(measurement, artefacts=artefacts)
        _write(path, to_json(measurement, indent=1))
        return measurement


def _refuse_degraded(measurement: Measurement) -> None:
    """A server whose tier has given up answers, and /health is 200: its log says so, and so must we.

    Raises:
        TierDegradedError: names the cause found in the log.
    """
    from pytest_kvoffload.engine.logs import tier_given_up

    if measurement.server.log_path is None:
        return
    lost = tier_given_up(Path(measurement.server.log_path), server=f"the server of {measurement.arm!r}")
    if lost is not None:
        raise lost


def _refuse_dead_helpers(measurement: Measurement, server: RunningServer | None) -> None:
    """A server goes on without the process that holds its tier, by recomputing.

    Raises:
        TierDegradedError: says which process ended, and its last words.
    """
    for words in server.dead_helpers() if server is not None else ():
        raise TierDegradedError(f"the server of {measurement.arm!r} lost a process that its tier needs: {words}")


def _digest(record: object) -> str:
    return hashlib.sha256(to_json(record)).hexdigest()[:12]


def _write(path: Path, raw: bytes, *, mode: int = 0o644) -> None:
    """Write a file whole or not at all: another process of the run may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.touch(mode=mode)
    partial.write_bytes(raw)
    partial.replace(path)
