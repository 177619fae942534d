"""A runner's noise floor: what A against A differs by, recorded under the runner's key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.thresholds import Threshold
from pytest_kvoffload.gate.verdict import Policy
from pytest_kvoffload.stats import noise_floor

CALIBRATION_SCHEMA_VERSION = 1
CALIBRATION_FILE = "kvoffload-calibration.json"
"""The file of noise floors, beside the configuration."""
_KEY_FIELDS = ("cpu", "cpus", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The smallest margin that A against A does not exceed on a runner."""

    margin: float
    quantile: float
    confidence: float
    runs: int
    requests_per_run: int
    measured_at: str
    explanation: str


def calibrate(runs: Sequence[Sequence[Block]], *, policy: Policy, boots_per_arm: int) -> Calibration:
    """Compute the floor from several runs of the same arm, one boot each.

    Raises:
        UsageError: too few runs or requests; the message says how many are needed.
    """
    times = [
        [s.ttft_seconds for b in run for s in b.measurement.phase(policy.phase).samples if s.ttft_seconds is not None]
        for run in runs
    ]
    try:
        floor = noise_floor(times, policy.quantile, confidence=policy.confidence, boots_per_arm=boots_per_arm)
    except ValueError as error:
        raise UsageError(f"this runner cannot be calibrated so: {error}") from error
    return Calibration(
        margin=floor.margin,
        quantile=policy.quantile,
        confidence=policy.confidence,
        runs=len(runs),
        requests_per_run=min(len(t) for t in times),
        measured_at=runs[0][0].measurement.started_at,
        explanation=floor.explanation,
    )


def runner_key(run: Sequence[Block]) -> str:
    """Name the runner by its processor, cores and GPUs."""
    environment = run[0].measurement.environment
    return " / ".join(environment.get(key, "unknown") for key in _KEY_FIELDS)


def save(path: Path, key: str, calibration: Calibration) -> None:
    """Write the floor of a runner, keeping those of others."""
    empty: dict[str, Any] = {"schema_version": CALIBRATION_SCHEMA_VERSION, "runners": {}}
    document = _read(path) if path.exists() else empty
    document["runners"][key] = asdict(calibration)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def check_margin(path: Path, policy: Policy, thresholds: Sequence[Threshold] = ()) -> str:
    """Say what is known of this runner's noise; refuse a margin below its floor.

    Raises:
        UsageError: the file cannot be read, or a margin is below the floor.
    """
    if not path.exists():
        return f"none ({path.name} does not exist): run kvoffload gate --calibrate on this runner"
    runners = _read(path)["runners"]
    found = runners.get(this_runner())
    if found is None:
        return f"none for this runner in {path.name}: run kvoffload gate --calibrate on it"
    asked = [
        (t.text, t.bound)
        for t in thresholds
        if t.kind == "regression" and t.metric == "ttft" and t.quantile == found["quantile"]
    ]
    if not thresholds and policy.quantile == found["quantile"]:
        asked = [(f"a margin of {policy.margin:.1%}", policy.margin)]
    for text, margin in asked:
        if margin < found["margin"]:
            raise UsageError(
                f"{text} is below this runner's noise floor of {found['margin']:.1%} "
                f"(p{found['quantile'] * 100:g}, measured {found['measured_at']}): A against A differs by as much. "
                f"Use a larger margin, more boots, or a quieter runner"
            )
    return f"noise floor {found['margin']:.1%} for p{found['quantile'] * 100:g}, measured {found['measured_at']}"


def this_runner() -> str:
    """Name this machine as :func:`runner_key` names the one of a measurement."""
    from pytest_kvoffload.machine import machine_facts

    facts = machine_facts()
    return " / ".join(facts.get(key, "unknown") for key in _KEY_FIELDS)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a calibration file: {error}") from error
    if not isinstance(document, dict) or document.get("schema_version") != CALIBRATION_SCHEMA_VERSION:
        raise UsageError(f"{path}: not a calibration file of schema {CALIBRATION_SCHEMA_VERSION}")
    return document
