"""``kvoffload doctor``: check this machine before a boot, remove leaked regions, explain the log of a dead server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload.errors import ExitCode, UsageError, did_you_mean

if TYPE_CHECKING:
    from pytest_kvoffload.engine.preflight import Check
    from pytest_kvoffload.engine.shm import Region
    from pytest_kvoffload.records import ConnectorConfig, KVOffloadConfig

_MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "skip": "skip"}
_EVERY = "all connectors"


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="kvoffload.toml or pyproject.toml (default: the nearest upwards)"
    )
    parser.add_argument("--connector", metavar="NAME", action="append", help="check this one only (repeatable)")
    parser.add_argument("--python", metavar="PY", help="interpreter that has vllm (default: engine.python)")
    parser.add_argument("--port", metavar="N", type=int, action="append", default=[], help="port that must be free")
    parser.add_argument("--no-import", action="store_true", help="read versions only, do not import vllm (faster)")
    parser.add_argument("--fix-leaks", action="store_true", help="first remove regions in /dev/shm without an owner")
    parser.add_argument(
        "--log", metavar="FILE", type=Path, help="explain this log of a failed boot or a dead server, and nothing else"
    )
    parser.add_argument("--exit-code", metavar="N", type=int, help="with --log: the server's exit code")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Check, print, and return 0 when nothing failed, 1 otherwise."""
    if args.log is not None:
        return _explain(args.log, args.exit_code, as_json=args.json)
    from pytest_kvoffload.output.progress import CommandProgress

    config = _load(args.config)
    chosen = _choose(config, args.connector)
    removed = _fix_leaks() if args.fix_leaks else ()
    with CommandProgress(enabled=not args.json and sys.stderr.isatty()) as progress:
        progress.line("checking" if args.no_import else "checking; importing vllm takes some seconds")
        sections = _check_all(config, chosen, python=args.python, ports=args.port, load=not args.no_import)
    ok = not any(check.status == "fail" for _, checks in sections for check in checks)
    if args.json:
        _print_json(
            {
                "schema_version": 1,
                "ok": ok,
                "config": config.source,
                "removed": [str(region.path) for region in removed],
                "checks": [
                    {"connector": None if name == _EVERY else name, "check": check}
                    for name, checks in sections
                    for check in checks
                ],
            }
        )
    else:
        for region in removed:
            print(f"removed {region.path}")
        _print_table(sections)
    return ExitCode.OK if ok else ExitCode.FAILED


def _load(path: Path | None) -> KVOffloadConfig:
    from pytest_kvoffload.config import find_config, load_config

    return load_config(path if path is not None else find_config(Path.cwd()))


def _choose(config: KVOffloadConfig, names: Sequence[str] | None) -> list[ConnectorConfig]:
    if not names:
        return list(config.connectors.values())
    for name in names:
        if name not in config.connectors:
            known = ", ".join(config.connectors)
            raise UsageError(f"no connector {name!r}{did_you_mean(name, config.connectors)}; configured: {known}")
    return [config.connectors[name] for name in dict.fromkeys(names)]


def _fix_leaks() -> tuple[Region, ...]:
    from pytest_kvoffload.engine.shm import leaked_regions, remove

    return remove(leaked_regions())


def _check_all(
    config: KVOffloadConfig, chosen: Sequence[ConnectorConfig], *, python: str | None, ports: Sequence[int], load: bool
) -> list[tuple[str, tuple[Check, ...]]]:
    """Check each connector; what comes out alike for all of them is listed once."""
    from pytest_kvoffload.engine.preflight import check_interpreter, preflight, what_is_needed

    model = Path(config.model.path).expanduser() if config.model.path else None
    model = model if model is not None and model.is_dir() else None
    reports = {}
    packages: list[str] = []
    version, on_cpu = _engine_facts(config, python)
    for connector in chosen:
        reports[connector.name] = preflight(
            engine=config.engine,
            connector=connector,
            model_path=model,
            ports=ports,
            server_version=version,
            cpu_platform=on_cpu,
            packages="none",
        ).checks
        needs = what_is_needed(engine=config.engine, connector=connector, server_version=version, cpu_platform=on_cpu)
        packages += needs.packages
    common = [check for check in next(iter(reports.values()), ()) if all(check in r for r in reports.values())]
    if config.engine.kind != "attach":
        common += check_interpreter(
            config.engine, list(dict.fromkeys(packages)), python=python, mode="load" if load else "versions"
        )
    sections = [(_EVERY, tuple(common))]
    for name, checks in reports.items():
        own = tuple(check for check in checks if check not in common)
        if own:
            sections.append((name, own))
    return sections


def _engine_facts(config: KVOffloadConfig, python: str | None) -> tuple[str | None, bool | None]:
    """Return version and platform of an interpreter of the user's own; both decide where a tier's bytes live."""
    from pytest_kvoffload.engine.interpreter import inspect_interpreter
    from pytest_kvoffload.errors import EngineError

    if config.engine.kind == "attach" or (config.engine.kind == "cpu" and python is None):
        return config.engine.vllm_version, None
    try:
        found = inspect_interpreter(python or config.engine.python, env=config.engine.env)
    except EngineError:
        return config.engine.vllm_version, None  # the check of the interpreter says what is wrong with it
    return found.vllm_version, found.cpu_platform or config.engine.kind == "cpu"


def _print_table(sections: Iterable[tuple[str, Sequence[Check]]]) -> None:
    from pytest_kvoffload.output.wrap import show

    rows = [(name, list(checks)) for name, checks in sections if checks]
    width = max((len(check.name) for _, checks in rows for check in checks), default=0)
    width = min(width, 32)
    for name, checks in rows:
        print(f"{name}:")
        for check in checks:
            show(f"  {_MARKS[check.status]:<4}  {check.name:<{width}}  {check.saw}")
            if check.status in ("warn", "fail"):
                for label, text in (("needed", check.needed), ("what to do", check.remedy)):
                    if text:
                        show(f"        {label:<10}  {text}")
    failed = sum(check.status == "fail" for _, checks in rows for check in checks)
    warned = sum(check.status == "warn" for _, checks in rows for check in checks)
    print(f"{failed} failed, {warned} warnings, {sum(len(checks) for _, checks in rows)} checks")


def _explain(path: Path, exit_code: int | None, *, as_json: bool) -> int:
    from pytest_kvoffload.engine.postmortem import degraded, diagnose

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read the log {path}: {error.strerror or error}") from error
    diagnosis = diagnose(text, exit_code=exit_code)
    lost = degraded(text)
    if as_json:
        _print_json({"schema_version": 1, "diagnosis": diagnosis, "degraded": lost})
        return ExitCode.FAILED
    print(f"{diagnosis.cls}: {diagnosis.cause}")
    print(f"what to do: {diagnosis.remedy}")
    if lost is not None and lost.cause != diagnosis.cause:
        print(f"also: {lost.cause}")
    print("the lines that show it:")
    for line in diagnosis.lines:
        print(f"  {line}")
    return ExitCode.FAILED


def _print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
