"""``kvoffload chaos``: break a tier under a running server, and say what its requests then get."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, get_args

from pytest_kvoffload.errors import ExitCode, KVOffloadError, UsageError, did_you_mean
from pytest_kvoffload.records import FaultOutcome, FaultResult, KVOffloadConfig, to_json

if TYPE_CHECKING:
    from pytest_kvoffload.faults import Fault
    from pytest_kvoffload.session import Arm

DEFAULT_TIMEOUT_SECONDS = 20.0


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--config", metavar="FILE", help="kvoffload.toml or pyproject.toml (default: searched upwards)")
    parser.add_argument(
        "--connector", action="append", default=[], metavar="NAME", help="connector to break (may be repeated)"
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="only this fault (may be repeated; see --list)"
    )
    parser.add_argument("--list", action="store_true", help="list the faults and end")
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="[CONNECTOR:]FAULT=OUTCOME[,OUTCOME]",
        help="outcomes that are acceptable for a fault (of one connector) in place of the usual ones (may be repeated)",
    )
    parser.add_argument(
        "--request-timeout",
        type=float,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"a request without an end after this is hung ({DEFAULT_TIMEOUT_SECONDS:g})",
    )
    parser.add_argument("--engine", choices=["cpu", "local"], help="override [engine] kind")
    parser.add_argument("--python", metavar="PATH", help="interpreter that has vllm (implies --engine local)")
    parser.add_argument("--vllm-version", metavar="V", help="version of the managed engine")
    parser.add_argument("--output", metavar="DIR", help="where logs and JSON go (default: .kvoffload/chaos-TIME)")
    parser.add_argument("--json", metavar="FILE", help="where the results go as JSON (default: DIR/chaos.json)")
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the table as Markdown, into FILE's marks where it has them"
    )
    parser.add_argument(
        "--merge",
        action="append",
        default=[],
        metavar="DIR",
        help="run nothing: one table of what earlier runs found (their directory or chaos.json; may be repeated)",
    )
    parser.add_argument("--no-progress", action="store_true", help="say nothing while it runs")


def run(args: argparse.Namespace) -> int:
    """Run every fault on every connector; print one table."""
    from pytest_kvoffload.config import find_config, load_config
    from pytest_kvoffload.faults import find_faults
    from pytest_kvoffload.faults.built_in import for_chaos

    faults, wanted = find_faults(tuple(args.fault)), _expectations(args.expect)
    if args.list:
        return _list(_with_expectations(faults, wanted, ""))
    if args.merge:
        return _merge(args)
    if not args.request_timeout > 0:
        raise UsageError("--request-timeout: a number of seconds above 0")
    config = for_chaos(load_config(Path(args.config) if args.config else find_config(Path.cwd())))
    out = Path(args.output or f".kvoffload/chaos-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    for connector, _ in wanted:
        _known_connector(connector, config)
    results, interrupted = _run_all(args, config, faults, wanted, out)
    _print(results)
    _write_json(Path(args.json) if args.json else out / "chaos.json", results, interrupted=interrupted)
    if interrupted and args.markdown:
        _warn(f"interrupted: {args.markdown} was left as it is (--merge {out} makes a table of what was seen)")
    else:
        _write_markdown(args, results)
    return ExitCode.INTERRUPTED if interrupted else _exit_code(results)


def _merge(args: argparse.Namespace) -> int:
    """Print and write what earlier runs found; their verdicts stay as they are."""
    from pytest_kvoffload.commands.chaos_merge import merge, read_results
    from pytest_kvoffload.faults import FAULTS

    for name in ("connector", "fault", "expect", "output"):
        if getattr(args, name):
            raise UsageError(f"--merge runs nothing and judges nothing anew: no --{name} beside it")
    found = [result for path in args.merge for result in read_results(Path(path))]
    results = merge(found, order=[fault.name for fault in FAULTS])
    _print(results)
    if args.json:
        _write_json(Path(args.json), results, interrupted=False)
    _write_markdown(args, results)
    return _exit_code(results)


def _run_all(
    args: argparse.Namespace,
    config: KVOffloadConfig,
    faults: tuple[Fault, ...],
    wanted: Mapping[tuple[str, str], tuple[FaultOutcome, ...]],
    out: Path,
) -> tuple[list[FaultResult], bool]:
    """Return the results, and whether it was interrupted."""
    from pytest_kvoffload.boot_checks import before_boot
    from pytest_kvoffload.faults import Chaos, run_faults
    from pytest_kvoffload.output.progress import CommandProgress
    from pytest_kvoffload.session import Arm, RunSession

    engine = config.engine
    if args.engine or args.python:
        engine = dataclasses.replace(engine, kind="local" if args.python else args.engine, url=None, metrics_urls=())
    engine = dataclasses.replace(
        engine, python=args.python or engine.python, vllm_version=args.vllm_version or engine.vllm_version
    )
    results: list[FaultResult] = []
    # A polite end (a CI's time limit, a terminal that is closed) is to undo the faults just as Ctrl-C does.
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with CommandProgress(enabled=not args.no_progress) as progress:
            # What the checks before a boot would refuse is here to be seen: how vLLM itself takes it.
            check = before_boot(warn=_warn, lint="off", insist=True)
            session = RunSession(out, progress=progress, before_boot=check)
            try:
                for name in _connectors(args, config):
                    arm = Arm(engine=engine, model=config.model, connector=config.connectors[name])
                    chaos = Chaos(session, arm, config.workload, request_timeout_seconds=args.request_timeout)
                    these = _with_expectations(faults, wanted, name)
                    mine: list[FaultResult] = []
                    try:
                        with chaos:
                            for result in run_faults(chaos, these):
                                progress.clear()
                                _say(args, result)
                                mine.append(result)
                    except KVOffloadError as error:
                        # Its stage was not set up or taken down; what others gave is not lost for that.
                        if not results and not mine:
                            raise
                        mine += _without_stage(arm, these[len(mine) :], error)
                    finally:
                        left = chaos.left_behind()
                        results += [_with_leftovers(result, left) for result in mine]
            finally:
                session.close()
    except KeyboardInterrupt:
        return results, True
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return results, False


def _without_stage(arm: Arm, faults: tuple[Fault, ...], error: KVOffloadError) -> list[FaultResult]:
    return [
        FaultResult(
            fault=fault.name,
            connector=arm.name,
            kind=arm.connector.kind,
            outcome=None,
            verdict="inconclusive",
            expected=fault.expected,
            reason=str(error).splitlines()[0],
        )
        for fault in faults
    ]


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _connectors(args: argparse.Namespace, config: KVOffloadConfig) -> tuple[str, ...]:
    from pytest_kvoffload.faults.built_in import DEFAULTS

    for name in args.connector:
        _known_connector(name, config)
    if args.connector:
        return tuple(args.connector)
    if config.source is None:
        return DEFAULTS
    return tuple(name for name, connector in config.connectors.items() if connector.kind != "recompute")


def _known_connector(name: str, config: KVOffloadConfig) -> None:
    known = config.connectors
    if name and name not in known:
        raise UsageError(f"no connector {name!r}{did_you_mean(name, known)}: there are {', '.join(known)}")


def _expectations(words: list[str]) -> dict[tuple[str, str], tuple[FaultOutcome, ...]]:
    """Read ``--expect``: by connector (empty for all of them) and fault.

    Raises:
        UsageError: not [CONNECTOR:]FAULT=OUTCOME, an unknown fault or outcome.
    """
    from pytest_kvoffload.faults import find_faults

    wanted: dict[tuple[str, str], tuple[FaultOutcome, ...]] = {}
    for word in words:
        place, equals, listed = word.partition("=")
        connector, _, name = place.rpartition(":")
        outcomes = tuple(part.strip() for part in listed.split(","))
        known = get_args(FaultOutcome)
        bad = next((outcome for outcome in outcomes if outcome not in known), None)
        if not equals or bad is not None:
            hint = did_you_mean(bad or "", known)
            raise UsageError(f"--expect {word}: [CONNECTOR:]FAULT=OUTCOME[,OUTCOME] with {', '.join(known)}{hint}")
        find_faults((name,))
        wanted[connector, name] = outcomes  # type: ignore[assignment]
    return wanted


def _with_expectations(
    faults: tuple[Fault, ...], wanted: Mapping[tuple[str, str], tuple[FaultOutcome, ...]], connector: str
) -> tuple[Fault, ...]:
    """Replace the acceptable outcomes of the faults that were named, for this connector or for all."""
    return tuple(
        dataclasses.replace(
            fault, expected=wanted.get((connector, fault.name), wanted.get(("", fault.name), fault.expected))
        )
        for fault in faults
    )


def _list(faults: tuple[Fault, ...]) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from pytest_kvoffload.faults import LEFT_OUT

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), header_style="bold")
    for title in ("fault", "acts on", "what happens", "acceptable"):
        table.add_column(title, no_wrap=title == "fault")
    for fault in faults:
        table.add_row(fault.name, fault.site.replace("_", " "), fault.summary, ", ".join(fault.expected))
    Console().print(table)
    print(f"not here: {LEFT_OUT}")
    return ExitCode.OK


def _say(args: argparse.Namespace, result: FaultResult) -> None:
    if not args.no_progress and result.verdict != "not-applicable":
        word = result.outcome or "no outcome"
        print(f"  {result.connector}, {result.fault}: {word}: {result.reason}", file=sys.stderr, flush=True)


def _with_leftovers(result: FaultResult, left: tuple[str, ...]) -> FaultResult:
    if not left:
        return result
    text = f"{result.reason}; left behind: {', '.join(left)}"
    return dataclasses.replace(result, left_behind=left, verdict="fail", reason=text)


def _print(results: list[FaultResult]) -> None:
    from rich.console import Console

    from pytest_kvoffload.output.fault_table import print_faults

    print_faults(results, Console(file=sys.stdout))


def _write_json(path: Path, results: list[FaultResult], *, interrupted: bool) -> None:
    from pytest_kvoffload.engine.masking import mask_command

    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "schema_version": 1,
        "command": shlex.join(mask_command(["kvoffload", *sys.argv[1:]])),
        "complete": not interrupted,
        "exit_code": int(ExitCode.INTERRUPTED if interrupted else _exit_code(results)),
        "results": results,
    }
    path.write_bytes(to_json(document, indent=1))
    print(f"evidence: {path}")


def _write_markdown(args: argparse.Namespace, results: list[FaultResult]) -> None:
    from pytest_kvoffload.faults import FAULTS
    from pytest_kvoffload.output.fault_table import brought_up_to_date, markdown

    if not args.markdown:
        return
    page = Path(args.markdown)
    table = markdown(
        results,
        summaries={fault.name: fault.summary for fault in FAULTS},
        usual={fault.name: fault.expected for fault in FAULTS},
    )
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    page.write_text(brought_up_to_date(before, table), encoding="utf-8")


def _exit_code(results: list[FaultResult]) -> ExitCode:
    verdicts = {result.verdict for result in results}
    if "fail" in verdicts:
        return ExitCode.FAILED
    if "inconclusive" in verdicts or "pass" not in verdicts:
        return ExitCode.INCONCLUSIVE
    return ExitCode.OK


def _warn(text: str) -> None:
    print(f"kvoffload chaos: {text}", file=sys.stderr)
