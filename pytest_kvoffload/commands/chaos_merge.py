"""Results of several runs of ``kvoffload chaos`` in one table: a run for each connector, or a fault run once more."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.records import SCHEMA_VERSION, FaultOutcome, FaultResult

FILE = "chaos.json"
WORSE: tuple[FaultOutcome, ...] = ("served", "degraded", "failed_loudly", "hung", "wrong_output")
"""From the harmless to the worst."""


def read_results(path: Path) -> list[FaultResult]:
    """Read what one run wrote; the measurements behind it are left where they are.

    Args:
        path: the run's directory, or its JSON file.

    Raises:
        UsageError: it is not there, or not what ``kvoffload chaos`` writes.
    """
    import msgspec

    file = path / FILE if path.is_dir() else path
    try:
        document = msgspec.json.decode(file.read_bytes())
        rows = [{key: row[key] for key in row if key != "measurement"} for row in document["results"]]
        results = [msgspec.convert(row, FaultResult) for row in rows]
    except OSError as error:
        raise UsageError(f"--merge {path}: {file} cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise UsageError(f"--merge {path}: {file} is not what kvoffload chaos writes ({error})") from error
    newer = next((r.schema_version for r in results if r.schema_version != SCHEMA_VERSION), None)
    if newer is not None:
        raise UsageError(f"--merge {path}: results of schema {newer}; this version reads {SCHEMA_VERSION}")
    return results


def merge(results: Sequence[FaultResult], *, order: Sequence[str]) -> list[FaultResult]:
    """Return one result for each connector and fault: of several the worst, and how often it was seen.

    Args:
        results: of all runs.
        order: the faults' names in the order of the rows; connectors keep theirs.

    Raises:
        UsageError: they were observed on more than one vLLM.
    """
    versions = sorted({result.vllm_version for result in results if result.vllm_version})
    if len(versions) > 1:
        raise UsageError(f"--merge: results of vLLM {' and '.join(versions)}; a table speaks of one")
    places = {name: place for place, name in enumerate(order)}
    connectors = list(dict.fromkeys(result.connector for result in results))
    rows: dict[tuple[str, str], list[FaultResult]] = {}
    for result in results:
        rows.setdefault((result.connector, result.fault), []).append(result)
    keys = sorted(rows, key=lambda key: (connectors.index(key[0]), places.get(key[1], len(places)), key[1]))
    return [_worst(rows[key]) for key in keys]


def _worst(results: Sequence[FaultResult]) -> FaultResult:
    """Return the worst of what was observed; where nothing was, the last that says why."""
    seen = [result for result in results if result.outcome is not None]
    if not seen:
        tried = [result for result in results if result.verdict != "not-applicable"]
        return (tried or results)[-1]
    worst = max(seen, key=lambda result: (_rank(result), result.verdict == "fail"))
    counts = Counter(result.outcome for result in seen if result.outcome is not None)
    if len(counts) == 1:
        return worst
    told = ", ".join(f"{outcome.replace('_', ' ')} {counts[outcome]}" for outcome in reversed(WORSE) if counts[outcome])
    return dataclasses.replace(worst, reason=f"{worst.reason} (of {len(seen)} runs: {told})")


def _rank(result: FaultResult) -> int:
    return -1 if result.outcome is None else WORSE.index(result.outcome)
