"""What a report is made of: the JSON of runs, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.records import Measurement, measurement_from_json

LOG_LINES = 40
_OUTCOMES = {0: "pass", 1: "fail", 3: "inconclusive"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was judged, in words."""

    name: str
    outcome: str
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
    failures: tuple[tuple[str, str], ...] = ()
    """Boots that failed: the arm's key, and the explanation."""
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
        problems=tuple(problem for part in parts for problem in part.problems),
        sources=tuple(source for part in parts for source in part.sources),
        command=next((part.command for part in parts if part.command), None),
    )


def log_tail(measurement: Measurement) -> str | None:
    """Return the last lines of the server's log, ``None`` when it is not here."""
    if measurement.server.log_path is None:
        return None
    try:
        with Path(measurement.server.log_path).open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - 65_536))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    return "\n".join(text.splitlines()[-LOG_LINES:])


def _directory(path: Path) -> RunDocument:
    parts: list[RunDocument] = []
    problems: list[str] = []
    for file in sorted(path.glob("**/measurements/*.json")):
        try:
            parts.append(_file(file))
        except UsageError as error:
            problems.append(str(error))
    parts += [_file(file) for name in ("demo.json", "verdict.json") if (file := path / name).is_file()]
    failures = [(file.stem, file.read_text("utf-8", errors="replace")) for file in sorted(path.glob("failures/*.txt"))]
    if not parts and not failures:
        detail = "\n  ".join(["", *problems])
        raise UsageError(f"{path}: nothing to report: no measurements/*.json, demo.json or verdict.json{detail}")
    merged = merge([*parts, RunDocument(failures=tuple(failures), problems=tuple(problems))])
    ordered = tuple(sorted(merged.measurements, key=lambda m: m.started_at))
    return RunDocument(
        measurements=ordered,
        outcome=merged.outcome,
        verdict=merged.verdict,
        findings=merged.findings,
        notes=merged.notes,
        failures=merged.failures,
        problems=merged.problems,
        sources=(str(path),),
        command=merged.command,
    )


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
            return _verdict({**data["verdict"], "outcome": data["outcome"]}, str(path))
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
        Finding(name=str(item["name"]), outcome=str(item["outcome"]), text=str(item["text"]))
        for item in data["findings"]
    )
    outcome = str(data["outcome"])
    if outcome not in ("pass", "fail", "inconclusive"):
        raise ValueError(f"unknown outcome {outcome!r}")
    reference, candidate = data.get("reference", "reference"), data.get("candidate", "candidate")
    return RunDocument(
        outcome=outcome,
        verdict=f"{candidate} against {reference}: {outcome}",
        findings=findings,
        notes=tuple(str(note) for note in data.get("notes", ())),
        sources=(source,),
    )
