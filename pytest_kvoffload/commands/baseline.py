"""``kvoffload baseline``: record what an arm does when it is good, and compare with it later."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pytest_kvoffload.commands.gate import compare, open_session, plan_options
from pytest_kvoffload.config import find_config, load_config
from pytest_kvoffload.errors import ExitCode, UsageError

FORMATS = ("text", "json", "bencher", "github-action-benchmark", "otava", "otava-config")


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="update|show|compare")
    update = actions.add_parser("update", help="measure the candidate and record it")
    plan_options(update)
    update.add_argument("--anchor", action="store_true", help="make this run the anchor that drift is counted from")
    judge = actions.add_parser("compare", help="measure the candidate and judge it against the baseline")
    plan_options(judge)
    for flag in ("--json", "--markdown"):
        judge.add_argument(flag, metavar="FILE", help="write the verdict there too")
    judge.add_argument("--github", action="store_true", help="print annotations for GitHub")
    show = actions.add_parser("show", help="print recorded baselines")
    show.add_argument("--config", metavar="FILE", help="kvoffload.toml or pyproject.toml (default: searched upwards)")
    show.add_argument("--baselines", metavar="DIR", help="folder of baselines")
    show.add_argument("--connector", metavar="NAME", help="only those of one connector")
    show.add_argument("--format", choices=FORMATS, default="text", help="text, or what another tool reads")
    show.add_argument("--csv", metavar="FILE", default="kvoffload.csv", help="where otava-config finds the CSV")


def run(args: argparse.Namespace) -> int:
    """Do one of the actions."""
    path = Path(args.config) if args.config else find_config(Path.cwd())
    if args.action == "show":
        return _show(args, path)
    args.base, args.calibrate = None, False
    args.reference = "baseline" if args.action == "compare" else args.candidate
    if args.action == "update":
        return _update(args, path)
    return compare(args, load_config(path), path, _evidence(args))


def _update(args: argparse.Namespace, path: Path | None) -> int:
    from pytest_kvoffload.commands.gate_plan import baseline_dir, baseline_key, candidate_of, make_plan
    from pytest_kvoffload.gate.baseline import load, save, updated
    from pytest_kvoffload.gate.reference import commit_of
    from pytest_kvoffload.gate_alone import measure_arm
    from pytest_kvoffload.output.progress import CommandProgress

    config = load_config(path)
    args.reference = candidate_of(config, args.candidate).name
    plan, _ = make_plan(args, config, path)
    folder, key = baseline_dir(args, path), baseline_key(plan.candidate)
    out = _evidence(args)
    with CommandProgress(enabled=not args.no_progress) as progress:
        session = open_session(args, config, plan, out, progress)
        try:
            blocks = measure_arm(session, plan, watch=progress.at)
        finally:
            session.close()
    file = folder / key.file_name
    old = load(file) if file.exists() else None
    baseline = updated(old, key, blocks, commit=commit_of(folder), anchor=args.anchor)
    print(f"recorded {baseline.newest.size} in {save(folder, baseline)}")
    return ExitCode.OK


def _evidence(args: argparse.Namespace) -> Path:
    return Path(args.output or f".kvoffload/baseline-{time.strftime('%Y%m%d-%H%M%S')}").absolute()


def _show(args: argparse.Namespace, path: Path | None) -> int:
    from pytest_kvoffload.commands.gate_plan import baseline_dir
    from pytest_kvoffload.gate.baseline import load_all
    from pytest_kvoffload.output import gate_exports
    from pytest_kvoffload.output.baseline_text import baseline_text
    from pytest_kvoffload.records import to_json

    folder = baseline_dir(args, path)
    found = [b for b in load_all(folder) if args.connector in {None, b.key.connector}]
    if not found:
        raise UsageError(f"no baseline in {folder}: record one with kvoffload baseline update")
    if args.format in {"otava", "otava-config"}:
        if len(found) != 1:
            names = ", ".join(b.key.file_name for b in found)
            raise UsageError(f"--format {args.format} shows one history; --connector picks among {names}")
        one = gate_exports.otava_csv(found[0])
        print(one if args.format == "otava" else gate_exports.otava_config(found[0], args.csv), end="")
    elif args.format == "bencher":
        print(gate_exports.bencher(found), end="")
    elif args.format == "github-action-benchmark":
        print(gate_exports.github_action_benchmark(found), end="")
    elif args.format == "json":
        rows = [{"key": b.key, "anchor": b.anchor, "history": b.history} for b in found]
        print(to_json({"schema_version": found[0].schema_version, "baselines": rows}, indent=1).decode())
    else:
        print("\n\n".join(baseline_text(b) for b in found))
    return ExitCode.OK
