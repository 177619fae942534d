"""``kvoffload gate``: block a change that regresses the TTFT tail, and no other."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload.config import build_config, find_config, load_config, parse_toml_text
from pytest_kvoffload.errors import ExitCode, UsageError, did_you_mean
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, KVOffloadConfig, to_json

if TYPE_CHECKING:
    from pytest_kvoffload.gate_run import GatePlan, GateRun
    from pytest_kvoffload.session import Arm, RunSession

CALIBRATION_FILE = "kvoffload-calibration.json"


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    option = parser.add_argument
    option("--config", metavar="FILE", help="kvoffload.toml or pyproject.toml (default: searched upwards)")
    option("--candidate", metavar="NAME", help="connector under test (default: the only one that offloads)")
    against = parser.add_mutually_exclusive_group()
    against.add_argument(
        "--base", metavar="REV", help="compare with the same connector as configured at a git revision"
    )
    against.add_argument(
        "--reference",
        metavar="WHAT",
        help="compare with another connector (NAME), another file (FILE.toml) or another vLLM (vllm==VERSION)",
    )
    option("--requests", type=int, metavar="N", help="requests per arm at most (300)")
    option("--boots", type=int, metavar="N", help="boots per arm (2)")
    option("--margin", metavar="PERCENT", help="how much slower the quantile may become (10%%)")
    option("--quantile", type=float, metavar="Q", help="which tail (0.99)")
    option("--alpha", type=float, metavar="P", help="error rate of a block, over all looks (0.01)")
    option("--phase", default="restored", help="phase that is judged (restored)")
    option("--alternate", action="store_true", help="one server at a time: more boots, half the memory")
    option("--calibrate", action="store_true", help="run A against A on this runner and record its noise floor")
    option(
        "--calibration", metavar="FILE", help=f"noise floors by runner (default: {CALIBRATION_FILE} beside the config)"
    )
    option("--output", metavar="DIR", help="where evidence goes (default: .kvoffload/gate-TIME)")
    option("--json", metavar="FILE", help="write the verdict there too")
    option("--markdown", metavar="FILE", help="append the summary there, such as $GITHUB_STEP_SUMMARY")
    option("--insist", action="store_true", help="boot although preflight says that it cannot succeed")
    option("--no-progress", action="store_true", help="say nothing while it runs")


def run(args: argparse.Namespace) -> int:
    """Compare, or calibrate."""
    from pytest_kvoffload.boot_checks import before_boot
    from pytest_kvoffload.output.progress import CommandProgress
    from pytest_kvoffload.session import RunSession

    path = Path(args.config) if args.config else find_config(Path.cwd())
    config = load_config(path)
    plan, notes = _plan(args, config, path)
    out = Path(args.output or f".kvoffload/gate-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    with CommandProgress(enabled=not args.no_progress) as progress:
        session = RunSession(
            out,
            progress=progress,
            before_boot=before_boot(insist=args.insist, warn=_say, settings=config.lint),
            max_live=2 if plan.side_by_side else 1,
        )
        try:
            if args.calibrate:
                return _calibrate(args, config, path, plan, session)
            from pytest_kvoffload.gate_run import run_gate

            result = run_gate(session, plan, say=_say)
        finally:
            session.close()
    verdict = dataclasses.replace(result.verdict, notes=(*notes, *result.verdict.notes))
    return _report(args, dataclasses.replace(result, verdict=verdict), out)


def _report(args: argparse.Namespace, result: GateRun, out: Path) -> int:
    from pytest_kvoffload.output.gate_text import markdown, text

    verdict = result.verdict
    print(text(verdict))
    document = to_json({"verdict": verdict, "outcome": verdict.outcome, "exit_code": int(verdict.exit_code)}, indent=1)
    for target in filter(None, (str(out / "verdict.json"), args.json)):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_bytes(document)
    if args.markdown:
        with Path(args.markdown).open("a", encoding="utf-8") as sink:
            sink.write(markdown(verdict))
    print(f"evidence: {out}")
    return verdict.exit_code


def _calibrate(
    args: argparse.Namespace, config: KVOffloadConfig, path: Path | None, plan: GatePlan, session: RunSession
) -> int:
    from pytest_kvoffload.gate.calibration import Calibration, calibrate, runner_key, save
    from pytest_kvoffload.gate_run import measure_runs

    boots = max(3, args.boots or 4)
    runs = measure_runs(session, plan, boots=boots)
    calibration: Calibration = calibrate(runs, policy=plan.policy, boots_per_arm=plan.boots)
    file = _calibration_file(args, path)
    save(file, runner_key(runs[0]), calibration)
    print(f"{calibration.explanation}\nrecorded in {file} for the runner {runner_key(runs[0])}")
    return ExitCode.OK


def _plan(args: argparse.Namespace, config: KVOffloadConfig, path: Path | None) -> tuple[GatePlan, tuple[str, ...]]:
    from pytest_kvoffload.gate.calibration import check_margin
    from pytest_kvoffload.gate.policy import policy_of
    from pytest_kvoffload.gate_run import GatePlan

    policy, settings = policy_of(
        config.gate,
        {"margin": args.margin, "quantile": args.quantile, "alpha": args.alpha, "phase": args.phase},
        {"requests": args.requests, "boots": args.boots},
        source=config.source,
    )
    candidate = _arm(config, _candidate(config, args.candidate), label="candidate")
    notes: tuple[str, ...] = ()
    across: tuple[str, ...] = ()
    if args.calibrate:
        reference = dataclasses.replace(candidate, label="reference")
        calibration = "this run"
    else:
        reference, across, notes = _reference(args, config, path, candidate)
        calibration = check_margin(_calibration_file(args, path), policy)
    plan = GatePlan(
        reference=reference,
        candidate=candidate,
        workload=config.workload,
        policy=policy,
        requests=settings.requests,
        boots=settings.boots,
        side_by_side=not args.alternate and config.engine.kind == "cpu",
        across=across,
        calibration=calibration,
    )
    return plan, notes


def _reference(
    args: argparse.Namespace, config: KVOffloadConfig, path: Path | None, candidate: Arm
) -> tuple[Arm, tuple[str, ...], tuple[str, ...]]:
    """Return the reference arm, what it may differ in, and notes on where it came from."""
    name = candidate.connector.name
    if args.base:
        from pytest_kvoffload.gate.reference import read_at_base

        if path is None:
            raise UsageError("--base needs a kvoffload.toml (or [tool.kvoffload]) in the work tree")
        base = read_at_base(path, args.base)
        where = f"{base.path} at {args.base} ({base.commit[:12]})"
        old = build_config(parse_toml_text(base.text, name=Path(base.path).name, source=where), source=where)
        return _arm(old, _named(old, name), label="reference"), (), (f"reference: {where}", *base.notes)
    word = args.reference
    if word is None:
        raise UsageError("compare with what? --base REV, or --reference NAME | FILE.toml | vllm==VERSION")
    if word.startswith("vllm=="):
        engine = dataclasses.replace(config.engine, vllm_version=word.removeprefix("vllm=="))
        if engine.kind != "cpu":
            raise UsageError(
                "--reference vllm==VERSION needs the managed engine (kind 'cpu'): give a FILE.toml instead"
            )
        other = dataclasses.replace(candidate, engine=engine, label="reference")
        return other, ("vllm",), (f"reference: {word}",)
    if word.endswith(".toml"):
        other_config = load_config(Path(word))
        return _arm(other_config, _named(other_config, name), label="reference"), (), (f"reference: {word}",)
    return _arm(config, _named(config, word), label="reference"), (), (f"reference: connector {word}",)


def _candidate(config: KVOffloadConfig, name: str | None) -> ConnectorConfig:
    if name is not None:
        return _named(config, name)
    offloading = [c for c in config.connectors.values() if c.kind != "recompute"]
    if len(offloading) != 1:
        names = ", ".join(c.name for c in offloading) or "none that offloads"
        raise UsageError(f"--candidate: name one; [connectors] has {names}")
    return offloading[0]


def _named(config: KVOffloadConfig, name: str) -> ConnectorConfig:
    if name not in config.connectors:
        known = ", ".join(config.connectors)
        raise UsageError(
            f"no connector {name!r} in {config.source or 'the defaults'}{did_you_mean(name, config.connectors)}; "
            f"there are {known}"
        )
    return config.connectors[name]


def _arm(config: KVOffloadConfig, connector: ConnectorConfig, *, label: str) -> Arm:
    from pytest_kvoffload.session import Arm

    engine: EngineConfig = config.engine
    return Arm(engine=engine, model=config.model, connector=connector, label=label)


def _calibration_file(args: argparse.Namespace, path: Path | None) -> Path:
    if args.calibration:
        return Path(args.calibration)
    return (path.parent if path else Path.cwd()) / CALIBRATION_FILE


def _say(text: str) -> None:
    print(f"kvoffload gate: {text}", file=sys.stderr, flush=os.isatty(2))
