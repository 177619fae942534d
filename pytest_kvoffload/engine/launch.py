"""Booting a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_kvoffload.engine import devicelock
from pytest_kvoffload.engine.helpers import start_helpers, stop_helpers
from pytest_kvoffload.engine.logs import explain, known_cause, last_line, read_log, tail, tier_given_up
from pytest_kvoffload.engine.masking import mask_command, mask_environment, mask_text, mask_value
from pytest_kvoffload.engine.plan import LaunchPlan, make_plan
from pytest_kvoffload.engine.processes import Process, free_port, port_holder, port_is_free, this_process
from pytest_kvoffload.engine.readback import ReadBack, differences, local_session, read_back
from pytest_kvoffload.engine.server import HelperProcess, RunningServer, Supervision, describe_exit
from pytest_kvoffload.engine.supervise import reap, start_supervised
from pytest_kvoffload.errors import BootError, EngineError, ReadinessTimeoutError, UsageError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig, ServerInfo

_POLL_SECONDS = 0.2
_PROGRESS_SECONDS = 1.0
_PORT_TAKEN = ("address already in use", "errno 98")


def boot(
    *,
    engine: EngineConfig,
    model: ModelConfig,
    connector: ConnectorConfig,
    run_dir: Path,
    progress: Callable[[str], None] | None = None,
    owner_pid: int | None = None,
    previous: RunningServer | None = None,
) -> RunningServer:
    """Start a server with one connector, and the processes that the connector needs; return it once it is ready.

    Args:
        engine: kind ``cpu`` or ``local``.
        model: the model; the generated test model when it names none.
        connector: the arm.
        run_dir: where the log goes.
        progress: receives one line at a time.
        owner_pid: the process whose death ends the server; the caller by default.
        previous: a server of the same arm that was stopped with ``keep_helpers``: its helpers and ports are used again.

    Raises:
        ConfigError: the configuration makes no sense.
        EngineError: interpreter, model, port or device are not to be had.
        BootError: the server died; the message names the first cause in its log.
        ReadinessTimeoutError: it neither died nor became ready in ``engine.boot_timeout_seconds``.
        TierDegradedError: it is ready, but its log says that it runs without its tier.
    """
    if engine.kind == "attach":
        raise UsageError("an engine of kind 'attach' is not booted: it is a server that runs already")
    say = progress or (lambda line: None)
    owner = Process.of(owner_pid) if owner_pid else this_process()
    engine_id = f"kvo-{uuid.uuid4().hex[:16]}"
    ports: dict[str, int] = dict(previous.ports) if previous else {}
    state = Path(previous.state) if previous and previous.helpers else Path(tempfile.mkdtemp(prefix="kvo-"))
    try:
        return _boot(engine, model, connector, run_dir, say, owner, previous, engine_id, ports, state)
    except BaseException:
        if not (previous and previous.helpers):
            shutil.rmtree(state, ignore_errors=True)
        raise


def _boot(
    engine: EngineConfig,
    model: ModelConfig,
    connector: ConnectorConfig,
    run_dir: Path,
    say: Callable[[str], None],
    owner: Process,
    previous: RunningServer | None,
    engine_id: str,
    ports: dict[str, int],
    state: Path,
) -> RunningServer:
    def port_of(name: str) -> int:
        if name not in ports:
            ports[name] = free_port()
        return ports[name]

    plan = make_plan(
        engine=engine,
        model=model,
        connector=connector,
        engine_id=engine_id,
        progress=say,
        scratch=state,
        port=port_of,
    )
    if isinstance((plan.parts.kv_transfer_config or {}).get("engine_id"), str):
        engine_id = str((plan.parts.kv_transfer_config or {})["engine_id"])
    if plan.fixed_port is not None and not port_is_free(plan.fixed_port, plan.host):
        raise EngineError(
            f"port {plan.fixed_port} on {plan.host} is taken{port_holder(plan.fixed_port)}: choose another --port, or "
            f"leave it out and a free one is found"
        )
    run_dir.mkdir(parents=True, exist_ok=True)
    wait_seconds = devicelock.lock_wait_seconds()
    keys = devicelock.device_keys(cpu_platform=plan.cpu_platform, env={**os.environ, **plan.env})
    me = this_process()
    devicelock.claim(keys, owner=owner, holder=me, progress=say, wait_seconds=wait_seconds)
    holder = me
    kept = previous.helpers if previous else ()
    helpers: tuple[HelperProcess, ...] = kept
    try:
        if not kept:
            helpers = start_helpers(plan.parts.helpers, run_dir=run_dir, owner=owner, state=state, progress=say)
        around = _Around(helpers=helpers, ports=ports, state=str(state))
        for attempt in (1, 2):
            port = plan.fixed_port or free_port(plan.host)
            launch = _Launch(plan, engine, connector, run_dir, engine_id, port, owner, say, around)
            try:
                launch.start()
                if wait_seconds is not None:
                    devicelock.hand_over(owner, holder, launch.guard_process)
                    holder = launch.guard_process
                return launch.wait_until_ready()
            except BootError as error:
                launch.abandon()
                lost_race = any(word in read_log(launch.log).lower() for word in _PORT_TAKEN)
                if attempt == 2 or plan.fixed_port is not None or not lost_race:
                    raise
                say(f"port {port} was taken by somebody else meanwhile; trying another one ({error.cause})")
            except BaseException:
                launch.abandon()
                raise
    except BaseException:
        stop_helpers(helpers)
        raise
    finally:
        if wait_seconds is not None and holder is me:
            devicelock.hand_over(owner, me, None)
    raise AssertionError("unreachable: the second attempt returns or raises")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What a server has around it: helpers that run already, ports by name, the connector's scratch directory."""

    helpers: tuple[HelperProcess, ...]
    ports: dict[str, int]
    state: str


class _Launch:
    """One attempt to boot."""

    def __init__(
        self,
        plan: LaunchPlan,
        engine: EngineConfig,
        connector: ConnectorConfig,
        run_dir: Path,
        engine_id: str,
        port: int,
        owner: Process,
        say: Callable[[str], None],
        around: _Around,
    ) -> None:
        self.around = around
        self.plan, self.engine, self.connector, self.owner, self.say = plan, engine, connector, owner, say
        self.engine_id = engine_id
        self.url = f"http://{plan.host}:{port}"
        self.command = plan.command(port)
        stem = f"server-{re.sub(r'[^A-Za-z0-9._-]+', '-', connector.name)}-{uuid.uuid4().hex[:6]}"
        self.log = (run_dir / f"{stem}.log").absolute()
        # A short path: a Unix socket's name may not exceed about a hundred characters.
        self.scratch = tempfile.mkdtemp(prefix="kvo-")
        self.began = time.monotonic()
        self.waiting_for = "the process to start"
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.supervision: Supervision | None = None

    @property
    def guard_process(self) -> Process:
        assert self.supervision is not None
        return self.supervision.guard

    def start(self) -> None:
        """Start the guard, which starts the server."""
        self.supervisor, self.supervision = start_supervised(
            self.command,
            env={**os.environ, **self.plan.env, **self._scratch_environment()},
            log=self.log,
            # The helpers' data must outlive a restart of the server: then the first helper's guard removes it.
            scratch=[self.scratch] if self.around.helpers else [self.scratch, self.around.state],
            owner=self.owner,
            engine_id=self.engine_id,
        )

    def _scratch_environment(self) -> dict[str, str]:
        """vLLM leaves its sockets behind wherever they are; so they get a folder that the guard removes."""
        env = {"VLLM_RPC_BASE_PATH": self.scratch}
        if self.plan.cpu_platform:  # elsewhere the compilation caches under TMPDIR are worth keeping
            env["TMPDIR"] = self.scratch
        for name, folder in self.plan.parts.fresh_dirs.items():
            if name not in self.plan.env:
                (path := Path(self.scratch, folder)).mkdir()
                env[name] = str(path)
        return env

    def wait_until_ready(self) -> RunningServer:
        """Poll until ``/health`` answers 200 and the server has told about itself; refuse one that lost its tier."""
        import requests

        deadline = self.began + self.engine.boot_timeout_seconds
        next_word = self.began + _PROGRESS_SECONDS
        self.waiting_for = "/health to answer 200"
        with local_session() as session:
            while True:
                self._raise_if_dead()
                try:
                    answer = session.get(f"{self.url}/health", timeout=2)
                    if answer.status_code == 200:
                        break
                    self.waiting_for = f"/health to answer 200 (it answers {answer.status_code})"
                except requests.ConnectionError:
                    self.waiting_for = f"anything to listen at {self.url}"
                except requests.RequestException as error:
                    self.waiting_for = f"/health to answer ({type(error).__name__})"
                now = time.monotonic()
                if now >= deadline:
                    raise self._timed_out()
                if now >= next_word:
                    next_word = now + _PROGRESS_SECONDS
                    self.say(f"{self.connector.name}: {now - self.began:.0f} s, {mask_text(last_line(self.log))}")
                time.sleep(_POLL_SECONDS)
            ready = time.monotonic()
            read = read_back(self.url, (f"{self.url}/metrics",), session)
        self._raise_if_dead()
        if (lost := tier_given_up(self.log, server=f"the server of {self.connector.name!r}")) is not None:
            raise lost
        self.say(f"{self.connector.name}: ready after {ready - self.began:.0f} s")
        return RunningServer(
            self._info(read, ready - self.began),
            self.supervision,
            on_stopped=self._reap,
            helpers=self.around.helpers,
            ports=self.around.ports,
            state=self.around.state,
        )

    def abandon(self) -> None:
        """End whatever was started; used when the boot failed or was interrupted."""
        if self.supervision is not None:
            self.supervision.end(wait=self._reap)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _reap(self) -> None:
        reap(self.supervisor)

    def _raise_if_dead(self) -> None:
        assert self.supervision is not None
        assert self.supervisor is not None
        if self.supervision.status().get("exit_code") is None and self.supervisor.poll() is None:
            return
        self._reap_soon()
        code = self.supervision.status().get("exit_code")
        cause, remedy = explain(self.log, exit_code=code)
        for helper in self.around.helpers:
            if not helper.alive():
                raise BootError(cause=helper.last_words(), remedy=remedy, **self._evidence())
            # What the server merely saw as silence (a time-out) may have its cause in there.
            if (said := known_cause(helper.log)) is not None:
                cause, remedy = f"{said[0]} (said by {helper.spec.name}, {helper.log}; the server: {cause})", said[1]
        if not cause:
            words = tail(self.log.with_suffix(".guard.log"), 1)
            cause = words or f"{describe_exit(code)}, and its log names no cause"
        raise BootError(cause=mask_text(cause), remedy=remedy, **self._evidence())

    def _reap_soon(self) -> None:
        """Give the guard a moment to end the rest, so that the log is complete."""
        assert self.supervisor is not None
        try:
            self.supervisor.wait(timeout=4)
        except subprocess.TimeoutExpired:
            return

    def _timed_out(self) -> ReadinessTimeoutError:
        cause = (
            f"not ready after {self.engine.boot_timeout_seconds:.0f} s, and still alive; it was waiting for "
            f"{self.waiting_for}"
        )
        remedy = "read the log's last lines; raise [engine] boot_timeout_seconds if the machine is only slow"
        return ReadinessTimeoutError(cause=cause, remedy=remedy, **self._evidence())

    def _evidence(self) -> dict[str, str]:
        return {
            "command": " ".join(mask_command(self.command)),
            "log_path": str(self.log),
            "tail": mask_text(tail(self.log, 15)),
        }

    def _info(self, read: ReadBack, seconds: float) -> ServerInfo:
        asked = self.plan.parts.kv_transfer_config
        found = [*self.plan.parts.notes, *differences(asked, read)]
        blocks = self.engine.num_gpu_blocks
        if blocks is not None and read.num_gpu_blocks not in (None, blocks):
            found.append(f"num_gpu_blocks: {blocks} was asked for, but the server has {read.num_gpu_blocks}")
        length = self.engine.max_model_len
        if length is not None and read.max_model_len not in (None, length):
            found.append(f"max_model_len: {length} was asked for, but the server has {read.max_model_len}")
        server_pid = self.supervision.status().get("server_pid") if self.supervision else None
        return ServerInfo(
            url=self.url,
            metrics_urls=(f"{self.url}/metrics", *self.plan.parts.metrics_urls),
            engine_kind=self.engine.kind,
            model=self.plan.served_name,
            vllm_version=read.vllm_version or self.plan.interpreter.vllm_version,
            max_model_len=read.max_model_len,
            block_size_tokens=read.block_size_tokens,
            num_gpu_blocks=read.num_gpu_blocks,
            kv_transfer_config=mask_value(read.kv_transfer_config),
            differences=tuple(found),
            resets=read.developer_mode,
            clears=self.plan.parts.clears,
            salted=self.plan.parts.salted,
            chunk_tokens=self.plan.parts.chunk_tokens,
            helper_logs={helper.spec.name: str(helper.log) for helper in self.around.helpers},
            command=mask_command(self.command),
            environment=mask_environment(self.plan.env),
            log_path=str(self.log),
            pid=server_pid if isinstance(server_pid, int) else None,
            boot_seconds=seconds,
            replicas=read.engines,
            kv_event_sources=self.plan.kv_event_sources,
        )
