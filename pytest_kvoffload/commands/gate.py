"""``kvoffload gate``: block a change that regresses the TTFT tail, and no other."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload.config import find_config, load_config
from pytest_kvoffload.errors import ExitCode, IncomparableError, UsageError
from pytest_kvoffload.records import KVOffloadConfig

if TYPE_CHECKING:
    from pytest_kvoffload.gate.pace import Watch
    from pytest_kvoffload.gate.verdict import Verdict
    from pytest_kvoffload.gate_run import GatePlan
    from pytest_kvoffload.session import RunSession

CALIBRATION_BOOTS = 4
FEWEST_BOOTS = 3
"""Below which a calibration has no scatter worth the name."""


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    option = parser.add_argument
    plan_options(parser)
    against = parser.add_mutually_exclusive_group()
    against.add_argument(
        "--base", metavar="REV", help="compare with the same connector as configured at a git revision"
    )
    against.add_argument(
        "--reference",
        metavar="WHAT",
        help="compare with another connector (NAME), another file (FILE.toml), another vLLM (vllm==VERSION) or the "
        "recorded baseline (baseline)",
    )
    against.add_argument(
        "--reference-results",
        metavar="FILE",
        help="compare two result files instead of measuring: vllm bench serve --save-detailed, guidellm or aiperf",
    )
    option("--candidate-results", metavar="FILE", help="the candidate's result file")
    option(
        "--calibrate", action="store_true", help="record this runner's noise floor: A against A, in 4 boots (--boots)"
    )
    option("--json", metavar="FILE", help="write the verdict there too")
    option("--markdown", metavar="FILE", help="append the summary there, such as $GITHUB_STEP_SUMMARY")
    option("--github", action="store_true", help="annotate the candidate's configuration; set the output outcome")


def plan_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of everything that measures as the gate does."""
    option = parser.add_argument
    option("--config", metavar="FILE", help="kvoffload.toml or pyproject.toml (default: searched upwards)")
    option("--candidate", metavar="NAME", help="connector under test (default: the only one that offloads)")
    option(
        "--threshold",
        metavar="EXPR",
        action="append",
        help="what is asked, instead of [gate] thresholds; may be repeated",
    )
    option("--requests", type=int, metavar="N", help="requests per arm at most (300)")
    option("--boots", type=int, metavar="N", help="boots per arm (2)")
    option("--margin", metavar="PERCENT", help="how much slower the quantile may become (10%%)")
    option("--quantile", type=float, metavar="Q", help="which tail (0.99)")
    option("--alpha", type=float, metavar="P", help="error rate of a block, over all looks and thresholds (0.01)")
    option("--phase", help="phase that is judged (restored)")
    option("--alternate", action="store_true", help="one server at a time: more boots, half the memory")
    option("--calibration", metavar="FILE", help="noise floors by runner (default: kvoffload-calibration.json)")
    option("--baselines", metavar="DIR", help="folder of baselines (default: kvoffload-baselines beside the config)")
    option("--output", metavar="DIR", help="where evidence goes (default: .kvoffload/gate-TIME)")
    option("--insist", action="store_true", help="boot although preflight says that it cannot succeed")
    option("--no-progress", action="store_true", help="say nothing while it runs")


def run(args: argparse.Namespace) -> int:
    """Compare, or calibrate."""
    path = Path(args.config) if args.config else find_config(Path.cwd())
    config = load_config(path)
    out = Path(args.output or f".kvoffload/gate-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    if args.reference_results or args.candidate_results:
        return report(args, _compare_files(args, config), out, path)
    return compare(args, config, path, out)


def compare(args: argparse.Namespace, config: KVOffloadConfig, path: Path | None, out: Path) -> int:
    """Measure what the arguments say, or say in a verdict why there is no comparison."""
    from pytest_kvoffload.commands.gate_plan import make_plan
    from pytest_kvoffload.gate.verdict import Finding, Verdict

    try:
        plan, notes = make_plan(args, config, path)
    except IncomparableError as error:
        finding = Finding(name="comparable", outcome="inconclusive", text=str(error))
        verdict = Verdict(
            reference=args.reference or args.base or "",
            candidate=args.candidate or "candidate",
            findings=(finding,),
            requests_per_arm=0,
            boots_per_arm=0,
            calibration="not looked for",
        )
        return report(args, verdict, out, path)
    return measured(args, config, path, plan, notes, out)


def measured(
    args: argparse.Namespace,
    config: KVOffloadConfig,
    path: Path | None,
    plan: GatePlan,
    notes: tuple[str, ...],
    out: Path,
) -> int:
    """Measure what the plan says, and report."""
    from pytest_kvoffload.output.progress import CommandProgress

    with CommandProgress(enabled=not args.no_progress) as progress:
        session = open_session(args, config, plan, out, progress)
        try:
            if args.calibrate:
                return _calibrate(args, path, plan, session, watch=progress.at)
            from pytest_kvoffload.gate_run import run_gate

            result = run_gate(session, plan, say=_silent if args.no_progress else say, watch=progress.at)
            verdict = dataclasses.replace(result.verdict, notes=(*notes, *result.verdict.notes))
            # Before the servers stop, which takes seconds: a cancelled job has few of them left.
            _write(args, verdict, out)
        finally:
            session.close()
    from pytest_kvoffload.output.gate_table import print_gate_table

    arms = {"reference": result.reference, "candidate": result.candidate, **result.others}
    print_gate_table(arms, verdict, phase=plan.policy.phase)
    name = plan.candidate.connector.name
    return report(args, verdict, out, path, connector=name, reference=plan.reference_text)


def open_session(
    args: argparse.Namespace, config: KVOffloadConfig, plan: GatePlan, out: Path, progress: object
) -> RunSession:
    """Return the session in which the plan's servers are booted.

    Raises:
        UsageError: the directory holds another run's measurements: they would be taken for this one's.
    """
    from pytest_kvoffload.boot_checks import before_boot
    from pytest_kvoffload.session import RunSession

    for earlier in ("measurements", "failures"):
        if any((out / earlier).glob("*")):
            raise UsageError(
                f"--output {out}: it holds {earlier} of an earlier run, which would be taken for this one's; name a "
                f"new directory, or remove it"
            )

    arms = 1 + (not plan.recorded) + len(plan.others)
    return RunSession(
        out,
        progress=progress,  # type: ignore[arg-type]
        before_boot=before_boot(insist=args.insist, warn=say, settings=config.lint, record=out),
        max_live=arms if plan.side_by_side else 1,
    )


def report(
    args: argparse.Namespace,
    verdict: Verdict,
    out: Path,
    path: Path | None,
    *,
    connector: str | None = None,
    reference: str | None = None,
) -> int:
    """Print the verdict, write it where it was asked for, and return its exit code.

    ``reference`` is the text of the reference's configuration: annotations stand where the candidate's differs.
    """
    from pytest_kvoffload.output.gate_annotations import annotation_lines
    from pytest_kvoffload.output.gate_text import markdown, text
    from pytest_kvoffload.output.wrap import show

    show(text(verdict))
    _write(args, verdict, out)
    if args.markdown:
        with Path(args.markdown).open("a", encoding="utf-8") as sink:
            sink.write(markdown(verdict))
    if args.github:
        named = connector or args.candidate
        for line in annotation_lines(verdict, config=path, connector=named, reference=reference):
            print(line)
        outputs = os.environ.get("GITHUB_OUTPUT")
        if outputs:
            with Path(outputs).open("a", encoding="utf-8") as sink:
                sink.write(f"outcome={verdict.outcome}\n")
    print(f"evidence: {out}")
    return verdict.exit_code


def _write(args: argparse.Namespace, verdict: Verdict, out: Path) -> None:
    """Write the verdict as JSON, with the evidence and where else it was asked for."""
    from pytest_kvoffload.output.gate_text import document

    for target in filter(None, (str(out / "verdict.json"), args.json)):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_bytes(document(verdict, command=shlex.join(["kvoffload", *sys.argv[1:]])))


def _compare_files(args: argparse.Namespace, config: KVOffloadConfig) -> Verdict:
    from pytest_kvoffload.gate.imported import compare_files, read_results
    from pytest_kvoffload.gate.policy import policy_of

    if not args.reference_results or not args.candidate_results:
        raise UsageError("--reference-results and --candidate-results go together")
    overrides = {"margin": args.margin, "quantile": args.quantile, "alpha": args.alpha}
    policy, _ = policy_of(config.gate, overrides, {}, source=config.source)
    return compare_files(
        read_results(Path(args.reference_results)),
        read_results(Path(args.candidate_results)),
        policy=policy,
        texts=tuple(args.threshold or ()),
    )


def _calibrate(
    args: argparse.Namespace, path: Path | None, plan: GatePlan, session: RunSession, *, watch: Watch
) -> int:
    from pytest_kvoffload.commands.gate_plan import calibration_file
    from pytest_kvoffload.gate.calibration import calibrate, regressions, runner_key, save
    from pytest_kvoffload.gate_alone import measure_runs
    from pytest_kvoffload.stats import smallest_n

    asked = regressions(plan.policy, plan.thresholds)
    if not asked:
        raise UsageError(
            "--calibrate: no threshold asks for a regression of a latency, so there is nothing to calibrate"
        )
    boots = args.boots or CALIBRATION_BOOTS
    if boots < FEWEST_BOOTS:
        raise UsageError(f"--calibrate --boots {boots}: at least {FEWEST_BOOTS} boots show how much boots differ")
    fewest = max(smallest_n(threshold.quantile or 0.0) for threshold in asked)
    runs = measure_runs(session, plan, boots=boots, fewest=fewest, watch=watch)
    found = calibrate(runs, asked=asked, confidence=plan.policy.confidence, boots_per_arm=plan.boots)
    file = calibration_file(args, path)
    save(file, runner_key(runs[0]), found)
    lines = [calibration.explanation for calibration in found]
    if plan.candidate.engine.kind == "attach":
        lines.append("the server was never booted again: what a boot brings is not in this floor")
    print("\n".join([*lines, f"recorded in {file} for the runner {runner_key(runs[0])}"]))
    return ExitCode.OK


def _silent(text: str) -> None:
    """Say nothing."""


def say(text: str) -> None:
    """Say on stderr how far it has come."""
    from pytest_kvoffload.output.wrap import fit_stream

    print(fit_stream(f"kvoffload gate: {text}", sys.stderr), file=sys.stderr, flush=os.isatty(2))
