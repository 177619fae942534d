"""Making a fault begin and end on a running server, and changing a configuration for those that are there from boot."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.faults.catalog import FaultImpossibleError
from pytest_kvoffload.faults.memory import corrupt_host_tier
from pytest_kvoffload.faults.proxy import ProxyFault
from pytest_kvoffload.faults.stage import Stage
from pytest_kvoffload.probe.cache import reset_prefix_cache
from pytest_kvoffload.records import ConnectorConfig

if TYPE_CHECKING:
    from pytest_kvoffload.engine import RunningServer
    from pytest_kvoffload.engine.server import HelperProcess

SLOW_SECONDS = 0.3
LINK_BYTES_PER_SECOND, LINK_LATENCY_SECONDS = 20e6, 0.05

PROXY_FAULTS = {
    "object_store_down": ProxyFault(refuse=True),
    "object_store_slow": ProxyFault(latency_seconds=SLOW_SECONDS),
    "object_store_errors": ProxyFault(status=503, error_code="SlowDown"),
    "object_store_forbidden": ProxyFault(status=403, error_code="InvalidAccessKeyId"),
    "credentials_wrong": ProxyFault(status=403, error_code="InvalidAccessKeyId"),
    "object_truncated": ProxyFault(truncate=True),
    # Longer than the SDK takes to give a cut download up, shorter than its time-out for one (3 s).
    "object_stragglers": ProxyFault(truncate=True, straggle_seconds=0.8),
    "object_short": ProxyFault(shorten=True),
    "object_corrupted": ProxyFault(corrupt=True),
    "redis_gone": ProxyFault(refuse=True),
    "redis_slow": ProxyFault(latency_seconds=SLOW_SECONDS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A fault that is on. ``end`` ends it and may be called once; ``felt`` says whether anything ran into it."""

    note: str
    end: Callable[[], None]
    felt: Callable[[], bool | None] = lambda: None


def begin(fault: str, stage: Stage, server: RunningServer) -> Begun:
    """Make a fault begin.

    Raises:
        FaultImpossibleError: it cannot be made on this machine.
        EngineError: a helper did not come back.
    """
    if fault in PROXY_FAULTS:
        return _proxy(fault, stage)
    if fault.startswith("disk_"):
        return _disk(fault, stage, server)
    if fault == "host_memory_corrupted":
        return _memory(server)
    if fault in ("cache_server_killed", "cache_server_restarted"):
        return _cache_server(fault, server)
    if fault == "worker_killed":
        pid, name = engine_process(server)
        os.kill(pid, signal.SIGKILL)
        return Begun(note=f"SIGKILL to {name} (pid {pid})", end=lambda: None)
    raise FaultImpossibleError(f"the fault {fault!r} is there from a boot on, it does not begin on a running server")


def from_boot(fault: str, stage: Stage, *, stored_bytes: float | None) -> ConnectorConfig:
    """Return the stage's connector with a fault in its configuration (or a proxy that misbehaves already).

    Args:
        fault: its name.
        stage: holds the connector.
        stored_bytes: what the workload's cold phase stores in a healthy tier; ``None`` when it was not measured.
    """
    connector = stage.connector
    options: dict[str, Any] = dict(connector.options)
    if fault == "tier_exhausted":
        options.pop("size_gib", None)
        options["cpu_bytes_to_use"] = max(1, int((stored_bytes or 4 * 2**20) / 4))
    elif fault == "link_slow":
        options["link_bandwidth_bytes_per_second"] = LINK_BYTES_PER_SECOND
        options["link_latency_seconds"] = LINK_LATENCY_SECONDS
    elif fault == "credentials_wrong" and stage.store is not None:
        stage.store.break_with(PROXY_FAULTS[fault])
    elif fault == "cache_server_wrong_port":
        options["extra_config"] = {**options.get("extra_config", {}), "lmcache.mp.port": unused_port()}
    elif fault == "cache_server_wrong_mode":
        # Left alone, the server serves either mode on CUDA: there nothing would be wrong.
        options["transfer_mode"] = "engine_driven"
        options["extra_config"] = {
            **options.get("extra_config", {}),
            "lmcache.mp.mp_transfer_mode": "lmcache_driven",
        }
    else:
        raise FaultImpossibleError(f"the fault {fault!r} begins on a running server")
    return dataclasses.replace(connector, options=options)


def heal(stage: Stage) -> None:
    """End whatever a fault from boot did outside the server."""
    for proxy in (stage.store, stage.redis):
        if proxy is not None:
            proxy.heal()


def unused_port() -> int:
    """A port on which nothing listens now."""
    from pytest_kvoffload.engine.processes import free_port

    return free_port()


def engine_process(server: RunningServer) -> tuple[int, str]:
    """Find the engine core below the API server: pid and title.

    Raises:
        FaultImpossibleError: there is none (an engine in the API server's own process).
    """
    import psutil

    found: list[tuple[int, str]] = []
    try:
        for child in psutil.Process(server.info.pid).children(recursive=True):
            title = " ".join(child.cmdline()) or child.name()
            if "EngineCore" in title or "EngineCore" in child.name():
                found.append((child.pid, title.split()[0]))
    except psutil.Error as error:
        raise FaultImpossibleError(f"the server's processes cannot be looked at: {error}") from error
    if not found:
        raise FaultImpossibleError("no engine core process was found below the API server")
    return found[0]


def _proxy(fault: str, stage: Stage) -> Begun:
    proxy = stage.redis if fault.startswith("redis") else stage.store
    assert proxy is not None  # the stage refuses the fault otherwise
    how = PROXY_FAULTS[fault]
    proxy.break_with(how)
    # A refused connection is refused by the kernel: nothing of ours can count it.
    return Begun(
        note=f"{fault} began at the proxy before {proxy.upstream[0]}:{proxy.upstream[1]}",
        end=proxy.heal,
        felt=lambda: None if how.refuse else proxy.hurt > 0,
    )


def _disk(fault: str, stage: Stage, server: RunningServer) -> Begun:
    disk = stage.disk
    assert disk is not None  # the stage refuses the fault otherwise
    if fault == "disk_full":
        return Begun(note=f"{disk.path} has no byte left", end=disk.fill())
    if fault == "disk_read_only":
        return Begun(note=f"{disk.path} refuses writes", end=disk.make_read_only())
    if fault == "disk_files_deleted":
        count = disk.delete_files()
        _forget_host_tier(server)  # what memory above the disk still holds would be served as if nothing had happened
        return Begun(note=f"{count} files were deleted", end=lambda: None, felt=lambda: count > 0)
    count = disk.truncate_files() if fault == "disk_files_truncated" else disk.corrupt_files()
    _forget_host_tier(server)

    def end() -> None:
        disk.delete_files()
        _forget_host_tier(server)

    word = "cut to half" if fault == "disk_files_truncated" else "inverted"
    return Begun(note=f"{count} files were {word}", end=end, felt=lambda: count > 0)


def _memory(server: RunningServer) -> Begun:
    assert server.info.pid is not None
    engine_id = server.supervision.engine_id if server.supervision else ""
    changed = corrupt_host_tier(server.info.pid, engine_id=engine_id)
    return Begun(
        note=f"{changed} bytes of the host tier were inverted",
        end=lambda: _forget_host_tier(server),
        felt=lambda: changed > 0,
    )


def _forget_host_tier(server: RunningServer) -> None:
    """Drop what the host tier holds, so that what was made wrong is not served for ever (best effort)."""
    from pytest_kvoffload.errors import KVOffloadError

    if server.info.resets and server.alive():
        try:
            reset_prefix_cache(server.info, external=True, check=server.check, timeout_seconds=10.0)
        except KVOffloadError:
            return


def _cache_server(fault: str, server: RunningServer) -> Begun:
    if not server.helpers:
        raise FaultImpossibleError("the server has no LMCache server of ours beside it")
    helper = server.helpers[0]
    helper.kill()

    def start() -> None:
        _start_again(helper, server)

    if fault == "cache_server_restarted":
        start()
        return Begun(note=f"{helper.spec.name} was killed and started again", end=lambda: None)
    return Begun(note=f"{helper.spec.name} was killed", end=start)


def _start_again(helper: HelperProcess, server: RunningServer) -> None:
    """Start a killed helper; its guard had removed the connector's scratch directory, which it gets again."""
    from pathlib import Path

    if server.state:
        Path(server.state).mkdir(parents=True, exist_ok=True)
    helper.start(scratch=server.state or None)
