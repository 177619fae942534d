"""``kvoffload demo``: the main job in one command, on real vLLM and without a GPU."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload.errors import ExitCode
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, Measurement, ModelConfig, WorkloadConfig, to_json

if TYPE_CHECKING:
    from pytest_kvoffload.session import Arm, RunSession

NUM_GPU_BLOCKS = 80
"""A device cache of 10,240 tokens on the CPU backend: a few prompts overflow it."""
SESSIONS = 12


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--engine", choices=["cpu", "local"], default="cpu", help="managed vLLM, or one of yours")
    parser.add_argument("--python", metavar="PATH", help="interpreter that has vllm (implies --engine local)")
    parser.add_argument("--vllm-version", metavar="V", help="version of the managed engine")
    parser.add_argument("--model", metavar="PATH|NAME", help="model to serve (default: a generated test model)")
    parser.add_argument("--size-gib", type=float, default=1.0, metavar="GIB", help="host tier of the native arm (1)")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help=f"distinct prefixes ({SESSIONS})")
    parser.add_argument("--prefix-tokens", type=int, default=4096, help="length of a shared prefix (4096)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the workload (0)")
    parser.add_argument("--output", metavar="DIR", help="where logs and JSON go (default: .kvoffload/demo-TIME)")
    parser.add_argument("--no-progress", action="store_true", help="say nothing while it runs")


def run(args: argparse.Namespace) -> int:
    """Measure the control and the native host tier, print one table and one sentence."""
    from pytest_kvoffload.boot_checks import before_boot
    from pytest_kvoffload.output.progress import CommandProgress
    from pytest_kvoffload.session import RunSession

    out = Path(args.output or f".kvoffload/demo-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    with CommandProgress(enabled=not args.no_progress) as progress:
        check = before_boot(warn=_warn, record=out)
        arms = _arms(args)
        for arm in arms:
            check(arm)  # both, before the first boot: a refusal should not cost a minute
        session = RunSession(out, progress=progress)
        try:
            measurements, interrupted = _measure(session, arms, _workload(args))
        finally:
            session.close()
    verdict, code = _verdict(measurements) if not interrupted else ("interrupted", ExitCode.INTERRUPTED)
    _print(measurements, verdict)
    path = out / "demo.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "schema_version": 1,
        "command": shlex.join(["kvoffload", *sys.argv[1:]]),
        "verdict": verdict,
        "exit_code": int(code),
        "measurements": measurements,
    }
    path.write_bytes(to_json(document, indent=1))
    print(f"evidence: {path}")
    return code


def _warn(text: str) -> None:
    from pytest_kvoffload.output.wrap import fit_stream

    print(fit_stream(f"kvoffload demo: {text}", sys.stderr), file=sys.stderr)


def _arms(args: argparse.Namespace) -> tuple[Arm, Arm]:
    """Return the control and the native host tier."""
    from pytest_kvoffload.session import Arm

    engine = EngineConfig(
        kind="local" if args.python else args.engine,
        python=args.python,
        vllm_version=args.vllm_version,
        num_gpu_blocks=NUM_GPU_BLOCKS,
        max_model_len=8192,
    )
    model = ModelConfig(path=args.model)
    control = ConnectorConfig(name="control", kind="recompute")
    native = ConnectorConfig(name="native", kind="native", options={"size_gib": args.size_gib})
    return Arm(engine=engine, model=model, connector=control), Arm(engine=engine, model=model, connector=native)


def _workload(args: argparse.Namespace) -> WorkloadConfig:
    return WorkloadConfig(seed=args.seed, sessions=args.sessions, prefix_tokens=args.prefix_tokens)


def _measure(session: RunSession, arms: tuple[Arm, Arm], workload: WorkloadConfig) -> tuple[list[Measurement], bool]:
    """Return what was measured, and whether it was interrupted."""
    from pytest_kvoffload.probe import MeasurementInterrupted

    measured: list[Measurement] = []
    for arm in arms:
        try:
            measured.append(session.measure(arm, workload))
        except MeasurementInterrupted as interrupt:
            return [*measured, interrupt.partial], True
    return measured, False


def _verdict(measurements: list[Measurement]) -> tuple[str, ExitCode]:
    """Return the sentence, and the exit code that goes with it."""
    from pytest_kvoffload.assertions import MeterAssertionError, assert_offload_helps, assert_same_output
    from pytest_kvoffload.output.rows import format_seconds, phase_rows

    control, native = measurements
    try:
        assert_same_output(native)
        assert_same_output(native, relative_to=control)
        assert_offload_helps(native, control=control)
    except MeterAssertionError as error:
        bad = error.outcome == "violated"
        return f"The tier does not help: {error}", ExitCode.FAILED if bad else ExitCode.INCONCLUSIVE
    ours, theirs = (
        next(row for row in phase_rows(m) if row.phase == "restored").ttft[0].seconds for m in (native, control)
    )
    if ours is None or theirs is None:
        return "Nothing can be said: no restored request succeeded.", ExitCode.INCONCLUSIVE
    return (
        f"The tier helps: a revisit takes {format_seconds(ours)} to its first token with the tier and "
        f"{format_seconds(theirs)} without it ({theirs / ours:.1f} times faster), with the same output."
    ), ExitCode.OK


def _print(measurements: list[Measurement], verdict: str) -> None:
    from rich.console import Console

    from pytest_kvoffload.output.rows import phase_rows
    from pytest_kvoffload.output.table import print_rows
    from pytest_kvoffload.output.wrap import show

    if not measurements:
        return
    server = measurements[0].server
    print(f"vLLM {server.vllm_version}, model {server.model}, device cache {server.device_cache_tokens} tokens")
    show(measurements[0].plan.explanation)
    console = Console(file=sys.stdout)
    print_rows([row for measurement in measurements for row in phase_rows(measurement)], console)
    show(verdict)
