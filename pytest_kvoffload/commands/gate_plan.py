"""What ``kvoffload gate`` and ``kvoffload baseline`` compare: from the configuration and the command line to a plan."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload.config import build_config, load_config, parse_toml_text
from pytest_kvoffload.errors import IncomparableError, UsageError, did_you_mean
from pytest_kvoffload.gate.thresholds import CONTROL
from pytest_kvoffload.gate_run import GatePlan
from pytest_kvoffload.records import ConnectorConfig, KVOffloadConfig
from pytest_kvoffload.session import Arm

__all__ = ["CONTROL", "Reference", "arm_of", "baseline_key", "candidate_of", "make_plan"]

if TYPE_CHECKING:
    from pytest_kvoffload.gate.baseline import Baseline, BaselineKey
    from pytest_kvoffload.gate.samples import Block
    from pytest_kvoffload.gate.thresholds import Threshold


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The other side of a comparison."""

    arm: Arm
    across: tuple[str, ...] = ()
    recorded: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()
    text: str | None = None
    """The configuration it was read from, where that is not the candidate's."""


def make_plan(args: argparse.Namespace, config: KVOffloadConfig, path: Path | None) -> tuple[GatePlan, tuple[str, ...]]:
    """Return the plan, and notes for the verdict on where its parts came from.

    Raises:
        UsageError: the command line and the configuration do not make a comparison.
        IncomparableError: there is no baseline for this runner, model, engine and connector.
    """
    from pytest_kvoffload.gate.calibration import check_margin
    from pytest_kvoffload.gate.policy import policy_of

    policy, settings = policy_of(
        config.gate,
        {"margin": args.margin, "quantile": args.quantile, "alpha": args.alpha, "phase": args.phase},
        # A calibration boots more often than the arms of the gate that it is for.
        {"requests": args.requests, "boots": None if args.calibrate else args.boots},
        source=config.source,
    )
    candidate = arm_of(config, candidate_of(config, args.candidate), label="candidate")
    boots = 1 if config.engine.kind == "attach" else settings.boots  # a running server is never booted again
    thresholds = _thresholds(args, config)
    if args.calibrate:
        reference = Reference(arm=dataclasses.replace(candidate, label="reference"))
        calibration = "this run"
    else:
        reference = _reference(args, config, path, candidate)
        calibration = check_margin(calibration_file(args, path), policy, thresholds, boots=boots)
    others = _others(config, thresholds)
    _refuse_one_server_for_two(candidate, [*others.values(), *([] if args.calibrate else [reference.arm])], reference)
    plan = GatePlan(
        reference=reference.arm,
        candidate=candidate,
        workload=config.workload,
        policy=policy,
        thresholds=thresholds,
        others=others,
        recorded=reference.recorded,
        requests=settings.requests,
        boots=boots,
        side_by_side=config.engine.kind == "attach" or (config.engine.kind == "cpu" and not args.alternate),
        across=reference.across,
        calibration=calibration,
        reference_text=reference.text,
    )
    return plan, reference.notes


def candidate_of(config: KVOffloadConfig, name: str | None) -> ConnectorConfig:
    """Return the connector under test: the named one, or the only one that offloads."""
    if name is not None:
        return _named(config, name)
    offloading = [c for c in config.connectors.values() if c.kind != "recompute"]
    if len(offloading) != 1:
        names = ", ".join(c.name for c in offloading) or "none that offloads"
        raise UsageError(f"--candidate: name one; [connectors] has {names}")
    return offloading[0]


def arm_of(config: KVOffloadConfig, connector: ConnectorConfig, *, label: str) -> Arm:
    """Return the arm of a connector."""
    return Arm(engine=config.engine, model=config.model, connector=connector, label=label)


def baseline_key(arm: Arm) -> BaselineKey:
    """Return the key of an arm's baseline on this machine."""
    from pytest_kvoffload.gate.baseline import BaselineKey, model_name
    from pytest_kvoffload.gate.calibration import this_runner

    return BaselineKey(
        runner=this_runner(),
        model=model_name(arm.model),
        engine=arm.engine.kind,
        connector=arm.connector.name,
    )


def calibration_file(args: argparse.Namespace, path: Path | None) -> Path:
    """Return the file of noise floors."""
    from pytest_kvoffload.gate.calibration import CALIBRATION_FILE

    return Path(args.calibration) if args.calibration else _beside(path) / CALIBRATION_FILE


def baseline_dir(args: argparse.Namespace, path: Path | None) -> Path:
    """Return the folder of baselines."""
    from pytest_kvoffload.gate.baseline import BASELINE_DIR

    return Path(args.baselines) if args.baselines else _beside(path) / BASELINE_DIR


def _beside(path: Path | None) -> Path:
    return path.parent if path else Path.cwd()


def _thresholds(args: argparse.Namespace, config: KVOffloadConfig) -> tuple[Threshold, ...]:
    from pytest_kvoffload.gate.thresholds import parse_thresholds

    texts = tuple(args.threshold or config.thresholds)
    source = None if args.threshold else config.source
    if texts and (args.margin is not None or args.quantile is not None):
        raise UsageError(
            "--margin and --quantile set the default question, and thresholds are given: "
            "write --threshold 'ttft_p99 regression < 10%' instead"
        )
    return parse_thresholds(texts, arms=(*config.connectors, CONTROL), source=source)


def _refuse_one_server_for_two(candidate: Arm, others: list[Arm], reference: Reference) -> None:
    """An attached server runs one connector, whatever the configuration calls it."""
    if candidate.engine.kind != "attach":
        return
    for arm in others:
        recorded = arm is reference.arm and reference.recorded
        if arm.engine.url == candidate.engine.url and not recorded and arm.connector != candidate.connector:
            raise UsageError(
                f"{arm.name} and the candidate are both the running server {candidate.engine.url}: attach compares "
                f"servers, so give the other one's URL in a file of its own (--reference FILE.toml)"
            )


def _others(config: KVOffloadConfig, thresholds: tuple[Threshold, ...]) -> dict[str, Arm]:
    """Return the arms that thresholds compare with, beside the reference."""
    names = {t.against for t in thresholds if t.against is not None} - {"reference"}
    found = {}
    for name in sorted(names):
        if name == CONTROL and name not in config.connectors:
            kind = [c for c in config.connectors.values() if c.kind == "recompute"]
            connector = kind[0] if kind else ConnectorConfig(name=CONTROL, kind="recompute")
        else:
            connector = _named(config, name)
        found[name] = arm_of(config, connector, label=name)
    return found


def _reference(args: argparse.Namespace, config: KVOffloadConfig, path: Path | None, candidate: Arm) -> Reference:
    name = candidate.connector.name
    if args.base:
        return _at_base(args.base, config, path, name)
    word = args.reference
    if word is None:
        raise UsageError("compare with what? --base REV, or --reference NAME | FILE.toml | vllm==VERSION | baseline")
    if word.startswith("vllm=="):
        if config.engine.kind != "cpu":
            raise UsageError(
                "--reference vllm==VERSION needs the managed engine (kind 'cpu'): give a FILE.toml instead"
            )
        engine = dataclasses.replace(config.engine, vllm_version=word.removeprefix("vllm=="))
        other = dataclasses.replace(candidate, engine=engine, label="reference")
        return Reference(arm=other, across=("vllm",), notes=(f"reference: {word}",))
    if word.endswith(".toml"):
        other_config = load_config(Path(word))
        arm = arm_of(other_config, _named(other_config, name), label="reference")
        text = Path(word).read_text(encoding="utf-8")
        return Reference(arm=arm, notes=(f"reference: {word}",), text=text)
    if word == "baseline" and word not in config.connectors:
        from pytest_kvoffload.gate.baseline import find

        baseline = find(baseline_dir(args, path), baseline_key(candidate))
        newest = baseline.newest
        note = (
            f"reference: baseline of {newest.recorded_at} (configuration {newest.configuration}, commit "
            f"{newest.commit or 'unknown'}); it was not measured in this run, so what the machine did since counts "
            f"as the candidate's"
        )
        arm = dataclasses.replace(candidate, label="baseline")
        return Reference(arm=arm, recorded=_replayed(baseline, config.workload.seed), notes=(note,))
    return Reference(
        arm=arm_of(config, _named(config, word), label="reference"), notes=(f"reference: connector {word}",)
    )


def _replayed(baseline: Baseline, first_seed: int) -> tuple[Block, ...]:
    """Return the recorded blocks that this run's seeds replay, numbered as the run numbers its own.

    Raises:
        IncomparableError: none: it was recorded with other seeds.
    """
    by_number = {block.measurement.workload.seed - first_seed: block for block in baseline.blocks}
    found = [
        dataclasses.replace(by_number[i], block=i)
        for i in itertools.takewhile(by_number.__contains__, itertools.count())
    ]
    if not found:
        seeds = ", ".join(str(block.measurement.workload.seed) for block in baseline.blocks)
        raise IncomparableError(
            f"the baseline of {baseline.key} was recorded with the seeds {seeds}, and this configuration begins at "
            f"{first_seed}: the same requests cannot be replayed. Record one with kvoffload baseline update"
        )
    return tuple(found)


def _at_base(revision: str, config: KVOffloadConfig, path: Path | None, name: str) -> Reference:
    from pytest_kvoffload.gate.reference import read_at_base

    if path is None:
        raise UsageError("--base needs a kvoffload.toml (or [tool.kvoffload]) in the work tree")
    base = read_at_base(path, revision)
    where = f"{base.path} at {revision} ({base.commit[:12]})"
    old = build_config(parse_toml_text(base.text, name=Path(base.path).name, source=where), source=where)
    notes = [f"reference: {where}", *base.notes]
    if (old.thresholds, old.gate) != (config.thresholds, config.gate):
        notes.append("this change also changes [gate]: the candidate is judged by the new thresholds")
    return Reference(arm=arm_of(old, _named(old, name), label="reference"), notes=tuple(notes), text=base.text)


def _named(config: KVOffloadConfig, name: str) -> ConnectorConfig:
    if name not in config.connectors:
        known = ", ".join(config.connectors)
        raise UsageError(
            f"no connector {name!r} in {config.source or 'the defaults'}{did_you_mean(name, config.connectors)}; "
            f"there are {known}"
        )
    return config.connectors[name]
