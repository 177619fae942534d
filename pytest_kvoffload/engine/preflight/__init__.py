"""Checks before a boot: memory, /dev/shm, leaks, memlock, GPU, tiers, versions and ports.

A boot costs a minute and more; one that cannot succeed is refused before. Each check says what it saw, what is
needed and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pytest_kvoffload.engine.preflight.memory import SystemPaths, check_leaks, check_memlock, check_memory, check_shm
from pytest_kvoffload.engine.preflight.needs import (
    Needs,
    ObjectStore,
    beside_bytes,
    derive,
    tensor_files,
    transfer_config_of,
)
from pytest_kvoffload.engine.preflight.report import Check, PreflightReport
from pytest_kvoffload.errors import PreflightError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig

__all__ = [
    "INSIST_VARIABLE",
    "Check",
    "Needs",
    "ObjectStore",
    "PreflightReport",
    "SystemPaths",
    "check_interpreter",
    "preflight",
    "refuse",
    "what_is_needed",
]

INSIST_VARIABLE = "KVOFFLOAD_INSIST"

PackageCheck: TypeAlias = Literal["load", "versions", "none"]
"""How far the engine's interpreter is looked into: import what a server imports, read the metadata, or not at all."""


def preflight(
    *,
    engine: EngineConfig,
    connector: ConnectorConfig,
    model_path: Path | None = None,
    expected_host_bytes: int | None = None,
    expected_shm_bytes: int | None = None,
    tier_dirs: Sequence[Path] = (),
    object_stores: Sequence[ObjectStore] = (),
    ports: Sequence[int] = (),
    server_version: str | None = None,
    cpu_platform: bool | None = None,
    engine_id: str | None = None,
    python: str | Path | None = None,
    packages: PackageCheck = "load",
    paths: SystemPaths | None = None,
) -> PreflightReport:
    """Check this machine for one server.

    What is needed is read off the connector's effective transfer configuration; ``expected_*``, ``tier_dirs`` and
    ``object_stores`` replace or add to it.

    Args:
        engine: which vLLM will run; of kind ``attach`` nothing is checked, because nothing is booted.
        connector: the arm under test.
        model_path: the model's directory: on the CPU its weights count as memory, and they must be there.
        expected_host_bytes: bytes of the tier outside /dev/shm, where the caller knows better.
        expected_shm_bytes: bytes of the tier in /dev/shm, where the caller knows better.
        tier_dirs: further directories that a tier writes to.
        object_stores: further buckets.
        ports: that the server will listen on.
        server_version: of vLLM, ``None`` when unknown.
        cpu_platform: whether that vLLM runs on its CPU backend; ``None`` means "kind is ``cpu``".
        engine_id: that the server will get; a region of that id in /dev/shm blocks it.
        python: the engine's interpreter; ``None`` is ``engine.python``, or the managed engine where there is one.
        packages: ``load`` imports vLLM and what the connector needs (5 to 20 s), ``versions`` reads the metadata.
        paths: where the kernel's files are looked for (tests).

    Raises:
        ConfigError: the connector's options make no sense.
    """
    from pytest_kvoffload.engine.preflight.gpu import check_gpu
    from pytest_kvoffload.engine.preflight.network import check_port, check_server
    from pytest_kvoffload.engine.preflight.objectstore import check_object_store
    from pytest_kvoffload.engine.preflight.packages import check_nixl_telemetry
    from pytest_kvoffload.engine.preflight.storage import check_tier_dir

    if engine.kind == "attach":
        return PreflightReport(
            checks=(Check(name="engine", status="skip", saw="an attached server is not booted: nothing to check"),)
        )
    where = paths or SystemPaths()
    words = (*engine.args, *connector.args)
    env = {**os.environ, **engine.env, **connector.env}
    needs = what_is_needed(
        engine=engine,
        connector=connector,
        model_path=model_path,
        expected_host_bytes=expected_host_bytes,
        expected_shm_bytes=expected_shm_bytes,
        server_version=server_version,
        cpu_platform=cpu_platform,
        engine_id=engine_id,
    )
    checks = [check_memory(needs, where), check_shm(needs, where), check_leaks(needs, where)]
    checks.append(check_memlock(needs, where))
    if needs.platform == "cpu":
        checks.append(Check(name="gpu", status="skip", saw="a CPU engine needs none"))
    else:
        checks += check_gpu(ranks=needs.ranks, words=words, env=env)
    if model_path is not None:
        checks.append(_check_model(model_path))
    for directory in dict.fromkeys((*needs.tier_dirs, *tier_dirs)):
        checks.append(check_tier_dir(directory, wanted_bytes=needs.tier_bytes))
    for store in dict.fromkeys((*needs.object_stores, *object_stores)):
        checks.append(check_object_store(store, env=env))
    if "nixl:OBJ" in needs.packages:
        checks.append(check_nixl_telemetry(env))
    checks += [check_server(name, host, port) for name, host, port in dict.fromkeys(needs.servers)]
    if packages != "none":
        checks += check_interpreter(engine, needs.packages, python=python, connector=connector, mode=packages)
    checks += [check_port(port) for port in ports]
    return PreflightReport(checks=tuple(checks))


def check_interpreter(
    engine: EngineConfig,
    needed: Sequence[str],
    *,
    connector: ConnectorConfig | None = None,
    python: str | Path | None = None,
    mode: PackageCheck = "load",
) -> tuple[Check, ...]:
    """Check the versions in the engine's interpreter and whether they load; see :func:`preflight`."""
    from pytest_kvoffload.engine.preflight.packages import check_packages

    interpreter = str(python) if python else engine.python
    if interpreter is None and engine.kind == "cpu":
        interpreter = _managed_interpreter(engine.vllm_version)
        if interpreter is None:
            text = "the managed engine is not installed yet; it is made, and checked, when it is first used"
            return (Check(name="versions", status="skip", saw=text, remedy="kvoffload engine install cpu"),)
    env = {**engine.env, **(connector.env if connector else {})}
    return check_packages(interpreter, needed=needed, env=env, load=mode == "load")


def what_is_needed(
    *,
    engine: EngineConfig,
    connector: ConnectorConfig,
    model_path: Path | None = None,
    expected_host_bytes: int | None = None,
    expected_shm_bytes: int | None = None,
    server_version: str | None = None,
    cpu_platform: bool | None = None,
    engine_id: str | None = None,
) -> Needs:
    """Return what one server will ask of the machine; the arguments are those of :func:`preflight`."""
    from pytest_kvoffload.engine.connectors import connector_argv

    on_cpu = engine.kind == "cpu" if cpu_platform is None else cpu_platform
    parts = connector_argv(
        connector, engine=engine, server_version=server_version, cpu_platform=on_cpu, engine_id=engine_id
    )
    words = (*engine.args, *parts.args)
    config: Mapping[str, Any] | None = parts.kv_transfer_config
    if config is None:
        config = transfer_config_of(words)
    return derive(
        transfer_config=config,
        words=words,
        env={**os.environ, **engine.env, **parts.env},
        platform="cpu" if on_cpu else "cuda",
        version=server_version or engine.vllm_version,
        weight_bytes=sum(file.stat().st_size for file in tensor_files(model_path)) if model_path else 0,
        beside_bytes=sum(beside_bytes(helper.command) for helper in parts.helpers),
        expected_host_bytes=expected_host_bytes,
        expected_shm_bytes=expected_shm_bytes,
    )


def refuse(report: PreflightReport, *, insist: bool = False) -> tuple[Check, ...]:
    """Refuse a boot that cannot succeed.

    Args:
        report: what preflight found.
        insist: boot all the same; so does the environment variable ``KVOFFLOAD_INSIST=1``.

    Returns:
        The failed checks that were insisted on, empty when nothing failed.

    Raises:
        PreflightError: something failed and nobody insists; the message lists each failed check.
    """
    failed = report.failed
    if not failed or insist or os.environ.get(INSIST_VARIABLE, "") not in ("", "0"):
        return failed
    count = "1 check" if len(failed) == 1 else f"{len(failed)} checks"
    lines = [f"this server cannot start here ({count} failed):"]
    for check in failed:
        lines.append(f"  {check.name}: {check.saw}")
        if check.needed:
            lines.append(f"    needed: {check.needed}")
        if check.remedy:
            lines.append(f"    what to do: {check.remedy}")
    lines.append(f"  to try all the same: --kvoffload-insist, or {INSIST_VARIABLE}=1 in the environment")
    raise PreflightError("\n".join(lines))


def _managed_interpreter(version: str | None) -> str | None:
    from pytest_kvoffload.engine.provision import list_installs

    installs = [install for install in list_installs()[0] if version in (None, install.version)]
    return str(installs[-1].python) if installs else None


def _check_model(path: Path) -> Check:
    name = f"model {path}"
    needed = "a directory with config.json and weights"
    if not (path / "config.json").is_file():
        what = "has no config.json" if path.is_dir() else "is not there"
        return Check(name=name, status="fail", saw=what, needed=needed, remedy="correct model.path")
    if not any(tensor_files(path)):
        return Check(name=name, status="warn", saw="config.json, but no weights", needed=needed)
    return Check(name=name, status="ok", saw="config.json and weights", needed=needed)
