"""What a report is made of: the JSON of runs, read back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.records import Measurement, measurement_from_json

LOG_LINES = 40
LOG_BYTES = 8_000_000
"""How much of a log is searched for faults."""
_OUTCOMES = {0: "pass", 1: "fail", 3: "inconclusive"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TailNumbers:
    """What a comparison of two tails rests on; ratios are candidate over reference."""

    reference_seconds: float
    candidate_seconds: float
    ratio: float | None
    """``None`` where it has no bound."""
    low: float | None
    high: float | None
    margin: float
    n: int
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was judged, in words, and in numbers where it compares tails."""

    name: str
    outcome: str
    text: str
    tail: TailNumbers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A server that did not start."""

    name: str
    """The key of its arm."""
    text: str
    """What the boot's error said: cause, remedy, command, last lines of the log."""
    log: str = ""
    """The lines of its log that say why, secrets masked; empty where there is no log."""

    @property
    def cause(self) -> str:
        """The first line of the error, without its opening words."""
        return self.text.strip().partition("\n")[0].removeprefix("the server did not start: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """One thing that was looked at before a boot: a lint finding or a check of the machine."""

    arm: str
    kind: str
    """``lint`` or ``preflight``."""
    name: str
    outcome: str
    """``error``, ``warning`` ... of lint; ``ok``, ``warn``, ``fail`` or ``skip`` of preflight."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocument:
    """Everything that is known of a run."""

    measurements: tuple[Measurement, ...] = ()
    outcome: str | None = None
    """``pass``, ``fail`` or ``inconclusive``; ``None`` when nothing judged the run."""
    verdict: str | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    """Boots that failed."""
    checks: tuple[CheckLine, ...] = ()
    """What was looked at before the boots."""
    facts: tuple[str, ...] = ()
    """What the verdict rests on, one sentence each."""
    reference: str | None = None
    """Name of the arm that the candidate was judged against."""
    candidate: str | None = None
    problems: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    sources: tuple[str, ...] = ()
    command: str | None = None
    """The command that made the run, when it is known."""


def read_documents(paths: Sequence[Path]) -> RunDocument:
    """Read measurements, runs (``demo.json``), verdicts (``verdict.json``) and whole run directories.

    Raises:
        UsageError: a file that is missing or none of these, or nothing to report in a directory.
    """
    parts: list[RunDocument] = []
    for path in paths:
        if path.is_dir():
            parts.append(_directory(path))
        elif path.name in ("demo.json", "verdict.json") and any(path.parent.glob("measurements/*.json")):
            parts.append(_directory(path.parent))  # all that it rests on lies beside it
        else:
            parts.append(_file(path))
    return merge(parts)


def merge(parts: Sequence[RunDocument]) -> RunDocument:
    """Return one document of several; of outcomes the worst counts, and a measurement that two name stands once."""
    outcomes = [part.outcome for part in parts if part.outcome is not None]
    worst = next((word for word in ("fail", "inconclusive", "pass") if word in outcomes), None)
    measurements: list[Measurement] = []
    for part in parts:
        measurements += [m for m in part.measurements if m not in measurements]
    return RunDocument(
        measurements=tuple(measurements),
        outcome=worst,
        verdict="\n".join(part.verdict for part in parts if part.verdict) or None,
        findings=tuple(finding for part in parts for finding in part.findings),
        notes=tuple(note for part in parts for note in part.notes),
        failures=tuple(failure for part in parts for failure in part.failures),
        checks=tuple(check for part in parts for check in part.checks),
        facts=tuple(fact for part in parts for fact in part.facts),
        reference=next((part.reference for part in parts if part.reference), None),
        candidate=next((part.candidate for part in parts if part.candidate), None),
        problems=tuple(problem for part in parts for problem in part.problems),
        sources=tuple(source for part in parts for source in part.sources),
        command=next((part.command for part in parts if part.command), None),
    )


def log_tail(measurement: Measurement) -> str | None:
    """Return the last lines of the server's log, ``None`` when it is not here."""
    text = _log(measurement, last=65_536)
    return None if text is None else "\n".join(text.splitlines()[-LOG_LINES:])


def log_faults(measurement: Measurement) -> str | None:
    """Return the lines of the server's log that say that its tier gave up, and what to do; ``None`` without such."""
    from pytest_kvoffload.engine.postmortem import degraded

    text = _log(measurement, last=LOG_BYTES)
    found = degraded(text) if text else None
    return None if found is None else "\n".join([found.cause, f"what to do: {found.remedy}", *found.lines])


def _log(measurement: Measurement, *, last: int) -> str | None:
    """Return the last bytes of the server's log as text, ``None`` when it is not here."""
    if measurement.server.log_path is None:
        return None
    try:
        with Path(measurement.server.log_path).open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - last))
            return log.read().decode("utf-8", errors="replace")
    except OSError:
        return None


def _directory(path: Path) -> RunDocument:
    parts: list[RunDocument] = []
    problems: list[str] = []
    for file in sorted(path.glob("**/measurements/*.json")):
        try:
            parts.append(_file(file))
        except UsageError as error:
            problems.append(str(error))
    parts += [_file(file) for name in ("demo.json", "verdict.json") if (file := path / name).is_file()]
    failures = tuple(_failure(file) for file in sorted(path.glob("**/failures/*.txt")))
    checks = tuple(check for file in sorted(path.glob("**/checks/*.json")) for check in _checks(file, problems))
    if not parts and not failures and not checks:
        detail = "\n  ".join(["", *problems])
        wanted = "measurements/*.json, failures/*.txt, checks/*.json, demo.json or verdict.json"
        raise UsageError(f"{path}: nothing to report: no {wanted}{detail}")
    merged = merge([*parts, RunDocument(failures=failures, checks=checks, problems=tuple(problems))])
    ordered = tuple(sorted(merged.measurements, key=lambda m: m.started_at))
    return dataclasses.replace(merged, measurements=ordered, sources=(str(path),))


def _failure(file: Path) -> Failure:
    from pytest_kvoffload.engine.masking import mask_text
    from pytest_kvoffload.engine.postmortem import diagnose

    logs = [log for log in file.parent.parent.glob(f"servers/{file.stem}/*.log") if not log.match("*.guard.log")]
    excerpt = ""
    if logs:
        newest = max(logs, key=lambda log: log.stat().st_mtime)
        log = newest.read_text("utf-8", errors="replace")
        excerpt = mask_text("\n".join(diagnose(log).lines or log.splitlines()[-LOG_LINES:]))
    return Failure(name=file.stem, text=file.read_text("utf-8", errors="replace"), log=excerpt)


def _checks(file: Path, problems: list[str]) -> list[CheckLine]:
    try:
        data = json.loads(file.read_bytes())
        return [CheckLine(**{key: str(value) for key, value in line.items()}) for line in data]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        problems.append(f"{file}: {error}")
        return []


def _file(path: Path) -> RunDocument:
    try:
        raw = path.read_bytes()
        data = json.loads(raw)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a measurement, a run or a verdict of kvoffload, got {type(data).__name__}")
    try:
        if "phases" in data:
            return RunDocument(measurements=(measurement_from_json(raw),), sources=(str(path),))
        if "measurements" in data:
            return _run(data, str(path))
        if data.get("kind") == "kvoffload-verdict":
            return _verdict({**data["verdict"], "outcome": data["outcome"], "command": data.get("command")}, str(path))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: {error}") from error
    raise UsageError(f"{path}: expected a measurement, a run or a verdict of kvoffload: none of their keys is there")


def _run(data: Mapping[str, Any], source: str) -> RunDocument:
    code = data.get("exit_code")
    return RunDocument(
        measurements=tuple(measurement_from_json(json.dumps(item)) for item in data["measurements"]),
        outcome=_OUTCOMES.get(code, "inconclusive") if isinstance(code, int) else None,
        verdict=str(data["verdict"]) if data.get("verdict") is not None else None,
        command=str(data["command"]) if data.get("command") else None,
        sources=(source,),
    )


def _verdict(data: Mapping[str, Any], source: str) -> RunDocument:
    findings = tuple(
        Finding(
            name=str(item["name"]), outcome=str(item["outcome"]), text=str(item["text"]), tail=_tail(item.get("tail"))
        )
        for item in data["findings"]
    )
    outcome = str(data["outcome"])
    if outcome not in ("pass", "fail", "inconclusive"):
        raise ValueError(f"unknown outcome {outcome!r}")
    reference, candidate = str(data.get("reference", "reference")), str(data.get("candidate", "candidate"))
    facts = []
    if "requests_per_arm" in data:
        facts.append(f"requests per arm: {data['requests_per_arm']}; boots per arm: {data.get('boots_per_arm', '?')}")
    if "calibration" in data:
        facts.append(f"calibration: {data['calibration']}")
    return RunDocument(
        outcome=outcome,
        verdict=f"{candidate} against {reference}: {outcome}",
        findings=findings,
        notes=tuple(str(note) for note in data.get("notes", ())),
        facts=tuple(facts),
        sources=(source,),
        reference=reference,
        candidate=candidate,
        command=str(data["command"]) if data.get("command") else None,
    )


def _tail(data: Mapping[str, Any] | None) -> TailNumbers | None:
    if not data:
        return None
    return TailNumbers(
        reference_seconds=float(data["reference_quantile"]),
        candidate_seconds=float(data["candidate_quantile"]),
        ratio=None if data["ratio"] is None else float(data["ratio"]),
        low=None if data["ratio_low"] is None else float(data["ratio_low"]),
        high=None if data["ratio_high"] is None else float(data["ratio_high"]),
        margin=float(data["margin"]),
        n=int(data["n"]),
        p_value=float(data["p_value"]),
    )
