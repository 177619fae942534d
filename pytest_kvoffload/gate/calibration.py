"""A runner's noise floor: what A against A differs by, recorded under the runner's key for each question asked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import IncomparableError, UsageError
from pytest_kvoffload.gate.comparable import tier_never_reached, unusable
from pytest_kvoffload.gate.judge import default_thresholds
from pytest_kvoffload.gate.samples import Block, latencies
from pytest_kvoffload.gate.thresholds import Threshold
from pytest_kvoffload.gate.verdict import Policy
from pytest_kvoffload.stats import noise_floor, quantile

CALIBRATION_SCHEMA_VERSION = 2
CALIBRATION_FILE = "kvoffload-calibration.json"
"""The file of noise floors, beside the configuration."""
_KEY_FIELDS = ("cpu", "cpus", "gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The smallest margin that A against A does not exceed on a runner, for one quantile of one phase."""

    label: str
    """What was calibrated, as a threshold writes it: ``restored.ttft_p99``."""
    margin: float
    """A share, for arms of ``boots_per_arm`` boots."""
    quantile_seconds: float
    """The smallest of the runs: what a threshold's floor in seconds is a share of."""
    confidence: float
    boots_per_arm: int
    runs: int
    requests_per_run: int
    connector: str
    model: str
    measured_at: str
    explanation: str

    def margin_at(self, boots: int) -> float:
        """Return the floor for arms of another number of boots: its logarithm falls with the root of their number."""
        return math.expm1(math.log1p(self.margin) * math.sqrt(self.boots_per_arm / boots))


def regressions(policy: Policy, thresholds: Sequence[Threshold] = ()) -> tuple[Threshold, ...]:
    """Return the thresholds that a noise floor bears on: latencies that may grow by a share of the reference's."""
    return tuple(t for t in thresholds or default_thresholds(policy) if t.kind == "regression" and t.quantile)


def calibrate(
    runs: Sequence[Sequence[Block]], *, asked: Sequence[Threshold], confidence: float, boots_per_arm: int
) -> tuple[Calibration, ...]:
    """Compute the floor of each regression that is asked, from several runs of the same arm, one boot each.

    Raises:
        IncomparableError: a request failed, a phase is missing, or the tier was never reached: such noise is that of
            something else.
        UsageError: too few runs or requests; the message says how many are needed.
    """
    first = runs[0][0].measurement
    found = []
    for threshold in asked:
        for run in runs:
            why = (*unusable(run, phase=threshold.phase), *filter(None, [_unreached(run, threshold.phase)]))
            if why:
                raise IncomparableError(f"{threshold.label} cannot be calibrated: {'; '.join(why)}")
        times = [latencies(run, phase=threshold.phase, metric=threshold.metric) for run in runs]
        q = threshold.quantile or 0.0
        try:
            floor = noise_floor(times, q, confidence=confidence, boots_per_arm=boots_per_arm)
        except ValueError as error:
            raise UsageError(f"{threshold.label} cannot be calibrated: {error}") from error
        found.append(
            Calibration(
                label=threshold.label,
                margin=floor.margin,
                quantile_seconds=min(quantile(run, q) for run in times),
                confidence=confidence,
                boots_per_arm=boots_per_arm,
                runs=len(runs),
                requests_per_run=floor.n,
                connector=first.connector.name,
                model=first.server.model,
                measured_at=first.started_at,
                explanation=f"{threshold.phase}: {floor.explanation}",
            )
        )
    return tuple({c.label: c for c in found}.values())


def _unreached(run: Sequence[Block], phase: str) -> str | None:
    """A cold phase has nothing to reach."""
    return tier_never_reached(run, phase=phase) if phase == "restored" else None


def runner_key(run: Sequence[Block]) -> str:
    """Name the runner by its processor, cores and GPUs."""
    environment = run[0].measurement.environment
    return " / ".join(environment.get(key, "unknown") for key in _KEY_FIELDS)


def save(path: Path, key: str, calibrations: Sequence[Calibration]) -> None:
    """Write floors of a runner, keeping those of others and those of other questions."""
    empty: dict[str, Any] = {"schema_version": CALIBRATION_SCHEMA_VERSION, "runners": {}}
    document = _read(path) if path.exists() else empty
    mine = document["runners"].setdefault(key, {})
    mine.update({calibration.label: asdict(calibration) for calibration in calibrations})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def check_margin(path: Path, policy: Policy, thresholds: Sequence[Threshold] = (), *, boots: int | None = None) -> str:
    """Say what is known of this runner's noise; refuse a margin below its floor.

    Args:
        path: the file of noise floors.
        policy: what is asked where there are no thresholds.
        thresholds: what is asked.
        boots: of an arm; ``None`` takes what was calibrated for.

    Raises:
        UsageError: the file cannot be read, or a margin is below the floor.
    """
    asked = regressions(policy, thresholds)
    if not path.exists():
        return f"none ({path.name} does not exist): run kvoffload gate --calibrate on this runner"
    floors = _read(path)["runners"].get(this_runner())
    if floors is None:
        return f"none for this runner in {path.name}: run kvoffload gate --calibrate on it"
    said = []
    for threshold in asked:
        if threshold.label not in floors:
            said.append(f"none for {threshold.label}: run kvoffload gate --calibrate on this runner")
            continue
        found = _floor(path, floors[threshold.label])
        lowest = found.margin_at(boots or found.boots_per_arm)
        if max(threshold.bound, (threshold.floor or 0.0) / found.quantile_seconds) < lowest:
            raise UsageError(
                f"{threshold.text} is below this runner's noise floor of {lowest:.1%} ({found.label}, measured "
                f"{found.measured_at}): A against A differs by as much. Use a larger margin, more boots, or a quieter "
                f"runner"
            )
        said.append(f"noise floor {lowest:.1%} for {found.label}, measured {found.measured_at}")
    return "; ".join(said) or "not needed: no regression is asked for"


def this_runner() -> str:
    """Name this machine as :func:`runner_key` names the one of a measurement."""
    from pytest_kvoffload.machine import machine_facts

    facts = machine_facts()
    return " / ".join(facts.get(key, "unknown") for key in _KEY_FIELDS)


def _floor(path: Path, fields: object) -> Calibration:
    import msgspec

    try:
        return msgspec.convert(fields, Calibration)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: not a calibration file: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a calibration file: {error}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != CALIBRATION_SCHEMA_VERSION or not isinstance(document.get("runners"), dict):
        raise UsageError(
            f"{path}: not a calibration file of schema {CALIBRATION_SCHEMA_VERSION} (it says {version!r}): remove it "
            f"and run kvoffload gate --calibrate again"
        )
    return dict(document)
