"""The course of a scenario: cold, restored, the fault begins, fault, the fault ends, recovered."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload import probe
from pytest_kvoffload.errors import (
    BootError,
    EngineError,
    KVOffloadError,
    ReadinessTimeoutError,
    ScrapeError,
    ServerDiedError,
    TierDegradedError,
    UsageError,
)
from pytest_kvoffload.faults.actions import Begun, begin, from_boot, heal
from pytest_kvoffload.faults.catalog import Fault, FaultImpossibleError
from pytest_kvoffload.faults.judge import Evidence, judge
from pytest_kvoffload.faults.stage import Stage
from pytest_kvoffload.metrics.query import total
from pytest_kvoffload.records import FaultResult, FaultVerdict, Measurement, ServerInfo, WorkloadConfig, to_json
from pytest_kvoffload.session import Arm, RunSession

if TYPE_CHECKING:
    from pytest_kvoffload.engine import RunningServer

REQUEST_TIMEOUT_SECONDS = 20.0
PHASE_TIMEOUTS = 3
"""A phase may take this many request timeouts: more is a hang, be it in small pieces."""
BOOT_TIMEOUT_SECONDS, BOOT_FACTOR = 240.0, 4.0
"""Limit of a boot that is meant to go wrong: this, or that many times as long as a healthy one took here.

Where none was seen in this run the engine's own limit holds: a slow machine is no hang."""


class _HungError(ServerDiedError):
    """A phase had no end; raised in place of a death, so that what was measured is kept."""


class _HalfDoneError(EngineError):
    """A fault did not begin or end as it should, such as a helper that did not come back."""


class _Watched:
    """The server, with a bound on the phase that is running."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.deadline: float | None = None
        self.bound = 0.0

    @property
    def info(self) -> ServerInfo:
        return self.server.info

    def check(self) -> None:
        self.server.check()
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.deadline = None
            raise _HungError(f"the requests did not come to an end within {self.bound:.0f} s")

    def limit(self, seconds: float | None) -> None:
        """Bound what follows; ``None`` takes the bound away."""
        self.bound = seconds or 0.0
        self.deadline = None if seconds is None else time.monotonic() + seconds


class _Disturber:
    """Begins and ends a fault around its phase, once each, whatever happens in between."""

    def __init__(self, fault: Fault, stage: Stage, watched: _Watched, limit: float) -> None:
        self.fault, self.stage, self.watched, self.limit = fault, stage, watched, limit
        self.begun: Begun | None = None
        self.felt: bool | None = None
        self.notes: list[str] = []

    def begin(self, phase: str) -> tuple[str, ...]:
        if phase == "recovered":
            self.watched.limit(self.limit)
        if phase != "fault":
            return ()
        try:
            self.begun = begin(self.fault.name, self.stage, self.watched.server)
        except EngineError as error:
            raise _HalfDoneError(f"{self.fault.name} did not begin: {error}") from error
        self.watched.limit(self.limit)
        self.notes.append(self.begun.note)
        return (self.begun.note,)

    def end(self, phase: str) -> tuple[str, ...]:
        self.watched.limit(None)
        if phase != "fault" or self.begun is None:
            return ()
        begun, self.begun = self.begun, None
        self.felt = begun.felt()
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            return ()  # all of it is taken down at once: nobody is to wait for a helper to come back first
        try:
            begun.end()
        except EngineError as error:
            raise _HalfDoneError(f"{self.fault.name} did not end: {error}") from error
        return (f"{self.fault.name} ended",)


class Chaos:
    """Runs scenarios against one connector. Use as a context manager: it leaves nothing behind.

    Args:
        session: boots the servers; its directory receives the evidence.
        arm: the user's engine, model and connector.
        workload: lengths, seed and sessions; its mode is set by each scenario.
        request_timeout_seconds: a request without an end after this is hung.

    Raises:
        UsageError: an attached server: faults need servers and tiers of our own.
    """

    def __init__(
        self,
        session: RunSession,
        arm: Arm,
        workload: WorkloadConfig,
        *,
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        if arm.engine.kind == "attach":
            raise UsageError("faults are made on servers and tiers of our own: engine kind cpu or local, not attach")
        self.session, self.arm, self.workload, self.timeout = session, arm, workload, request_timeout_seconds
        self.stage = Stage(
            arm.connector, small_host=arm.model.path is None, directory=session.run_dir / "stand-ins" / arm.name
        )
        self.stored_bytes: float | None = None
        self._servers: list[RunningServer] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Chaos:
        self._stack.enter_context(self.stage)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with self.session.exclusive():
                self._stop_servers()
        finally:
            self._stack.close()

    def refusal(self, fault: Fault) -> str:
        """Why a fault does not apply here; empty when it does."""
        return self.stage.refusal(fault)

    def run(self, fault: Fault, *, workload: WorkloadConfig | None = None) -> FaultResult:
        """Run one scenario and write its evidence down.

        ``workload`` replaces the usual one. A fault that does not apply, or cannot be made on this machine, is a result
        of its own kind and no error.

        Raises:
            EngineError: the healthy server did not boot.
            WorkloadError: the workload proves nothing on this server.
        """
        refused = self.refusal(fault)
        if refused:
            return self._write(_nothing(fault, self.arm, refused, "not-applicable"))
        with self.session.exclusive():
            return self._write(self._run(fault, workload or self.workload))

    def _run(self, fault: Fault, workload: WorkloadConfig) -> FaultResult:
        begun = time.monotonic()
        try:
            course = self._from_boot if fault.from_boot else self._on_running
            evidence = course(fault, workload)
        except FaultImpossibleError as error:
            return _nothing(fault, self.arm, str(error), "not-applicable")
        except BaseException:
            self._stop_servers()  # nobody knows what state it is in
            raise
        evidence = dataclasses.replace(
            evidence,
            seconds=evidence.seconds or time.monotonic() - begun,
            notes=(*self.stage.notes, *evidence.notes),
        )
        result = judge(fault, self.arm.name, self.arm.connector.kind, evidence)
        if result.recovered is not True and not fault.from_boot:
            self._stop_servers()  # the next scenario begins on a healthy one
        return result

    # --------------------------------------------------------------------------------------------- the two courses
    def _on_running(self, fault: Fault, workload: WorkloadConfig) -> Evidence:
        server = self._server(dataclasses.replace(self.arm, connector=self.stage.connector))
        if self.stage.disk is not None:
            self.stage.disk.delete_files()  # only for their room: every scenario has a cache salt of its own
        watched = _Watched(server)
        disturber = _Disturber(fault, self.stage, watched, PHASE_TIMEOUTS * self.timeout)
        evidence = self._measure(watched, dataclasses.replace(workload, mode="fault"), disturber)
        return dataclasses.replace(evidence, felt=disturber.felt, notes=(*disturber.notes, *evidence.notes))

    def _from_boot(self, fault: Fault, workload: WorkloadConfig) -> Evidence:
        connector = from_boot(fault.name, self.stage, stored_bytes=self.stored_bytes)
        healthy = max((server.info.boot_seconds or 0.0 for server in self._servers), default=0.0)
        limit = self.arm.engine.boot_timeout_seconds
        if healthy:
            limit = min(max(BOOT_TIMEOUT_SECONDS, BOOT_FACTOR * healthy), limit)
        engine = dataclasses.replace(self.arm.engine, boot_timeout_seconds=limit)
        arm = dataclasses.replace(self.arm, connector=connector, engine=engine, label=f"{self.arm.name}-{fault.name}")
        try:
            try:
                server = self._server(arm)
            except ReadinessTimeoutError as error:
                return Evidence(measurement=None, hung=f"the server did not become ready: {error.cause}")
            except BootError as error:
                return Evidence(measurement=None, boot_failure=error.cause)
            except TierDegradedError as error:  # it answers, without its tier: refused by name
                return Evidence(measurement=None, boot_failure=str(error).splitlines()[0])
            try:
                return self._measure(_Watched(server), dataclasses.replace(workload, mode="restore"), None)
            finally:
                server.stop()
        finally:
            heal(self.stage)

    def _measure(self, watched: _Watched, workload: WorkloadConfig, disturber: _Disturber | None) -> Evidence:
        begun = time.monotonic()
        measurement: Measurement | None = None
        death = hung = ""
        log_bytes = _size(watched.info.log_path)
        if disturber is None:
            watched.limit(2 * PHASE_TIMEOUTS * self.timeout)
        try:
            measurement = probe.measure(
                watched,
                arm=self.arm.name,
                connector=self.stage.connector,
                workload=workload,
                progress=self.session.progress.phase,
                request_timeout_seconds=self.timeout,
                disturbance=disturber,
            )
        except probe.MeasurementDiedError as error:
            measurement = error.partial
            if isinstance(error.__cause__, _HungError):
                hung = str(error)
            else:
                death = _cause_of_death(watched.info, log_bytes) or str(error).splitlines()[0]
        except ScrapeError as error:
            hung = f"/metrics did not answer any more: {error}"
        finally:
            self.session.progress.clear()
        if measurement is not None and self.stored_bytes is None and not death and not hung:
            self.stored_bytes = total(measurement.phases[0].delta, "vllm:kv_offload_store_bytes_total")
        return Evidence(measurement=measurement, death=death, hung=hung, seconds=time.monotonic() - begun)

    def _server(self, arm: Arm) -> RunningServer:
        server = self.session.server(arm)
        if server not in self._servers:
            self._servers.append(server)
        return server

    def _stop_servers(self) -> None:
        """Stop what was booted, with its helpers."""
        for server in self._servers:
            server.stop()

    def _write(self, result: FaultResult) -> FaultResult:
        path = self.session.run_dir / "faults" / f"{self.arm.name}-{result.fault}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_json(result, indent=1))
        return result

    def left_behind(self) -> tuple[str, ...]:
        """What is still there of everything that the scenarios made; call it after the context manager's end."""
        found = []
        for server in self._servers:
            if server.alive():
                found.append(f"the server at {server.info.url}")
            found += [f"process {helper.spec.name}" for helper in server.helpers if helper.alive()]
            engine_id = server.supervision.engine_id if server.supervision else ""
            if engine_id:
                found += [str(path) for path in Path("/dev/shm").glob(f"*{engine_id}*")]
            if server.state and Path(server.state).exists():
                found.append(server.state)
        return (*found, *self.stage.left_behind())


def run_faults(
    chaos: Chaos, faults: Sequence[Fault], *, say: Callable[[FaultResult], None] = lambda result: None
) -> Iterator[FaultResult]:
    """Run scenarios in an order that needs few boots; a connector that does not boot healthy fails each of them."""
    on_running = [fault for fault in faults if not fault.from_boot]
    for fault in (*on_running, *(fault for fault in faults if fault.from_boot)):
        try:
            result = chaos.run(fault)
        except _HalfDoneError as error:
            result = _nothing(fault, chaos.arm, str(error).splitlines()[0], "inconclusive")
        except EngineError as error:
            result = _nothing(
                fault, chaos.arm, f"the healthy server did not boot: {str(error).splitlines()[0]}", "inconclusive"
            )
        except KVOffloadError as error:
            result = _nothing(fault, chaos.arm, str(error).splitlines()[0], "inconclusive")
        say(result)
        yield result


def _size(path: str | None) -> int:
    return Path(path).stat().st_size if path is not None and Path(path).exists() else 0


def _cause_of_death(info: ServerInfo, log_bytes: int) -> str:
    """Explain a death by what the log says since this scenario began; earlier ones left their own errors in it."""
    from pytest_kvoffload.engine.postmortem import diagnose

    if info.log_path is None or not Path(info.log_path).exists():
        return ""
    said = Path(info.log_path).read_bytes()[log_bytes:].decode("utf-8", "replace")
    cause = diagnose(said, exit_code=None).cause if said.strip() else ""
    return f"the server died: {cause}" if cause else ""


def _nothing(fault: Fault, arm: Arm, reason: str, verdict: FaultVerdict) -> FaultResult:
    """A result without an outcome, and why there is none."""
    return FaultResult(
        fault=fault.name,
        connector=arm.name,
        kind=arm.connector.kind,
        outcome=None,
        verdict=verdict,
        expected=fault.expected,
        reason=reason,
    )
