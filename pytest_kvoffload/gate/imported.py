"""Result files of other load generators as arms: ``vllm bench serve --save-detailed``, guidellm and aiperf.

The two runs were not interleaved and nobody proves that they sent the same requests, so the test is unpaired, and what
the machine did between them counts as the candidate's. Failed requests refuse the comparison: a server that drops its
slowest requests would look fast. A file with averages only is refused too: no tail can be read off it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_kvoffload.errors import IncomparableError, UsageError
from pytest_kvoffload.gate.evaluate import sentence
from pytest_kvoffload.gate.judge import default_thresholds
from pytest_kvoffload.gate.spread import spread_of
from pytest_kvoffload.gate.thresholds import Threshold, parse_thresholds
from pytest_kvoffload.gate.verdict import Finding, Outcome, Policy, Verdict
from pytest_kvoffload.stats import holm_adjusted, tail_regression

_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """What a result file says of single requests, in the order they were sent. Seconds."""

    path: str
    tool: str
    ttft_seconds: tuple[float, ...]
    failed: int
    first_error: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What must be equal in both files: model, load, lengths."""


def read_results(path: Path) -> ImportedRun:
    """Read a result file; the tool is told by its shape.

    Raises:
        UsageError: not readable, of no known tool, or without times of single requests.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    try:
        data = json.loads(text)
    except ValueError:
        data = _json_lines(path, text)
    if isinstance(data, dict) and "metadata" in data and "metrics" in data:
        data = [data]  # an aiperf export of one request is valid JSON
    if isinstance(data, list) and data and all(isinstance(r, dict) and "metadata" in r for r in data):
        return _aiperf(path, data)
    if isinstance(data, dict) and isinstance(data.get("benchmarks"), list):
        return _guidellm(path, data["benchmarks"])
    if isinstance(data, dict) and ("ttfts" in data or "median_ttft_ms" in data):
        return _vllm_bench(path, data)
    raise UsageError(
        f"{path}: no result file of vllm bench serve --save-detailed (JSON), guidellm (benchmarks.json) or aiperf "
        f"(profile_export.jsonl)"
    )


def _json_lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise UsageError(f"{path}: line {number} is no JSON: {error}") from error
    return rows


def _vllm_bench(path: Path, data: Mapping[str, Any]) -> ImportedRun:
    if "ttfts" not in data:
        raise UsageError(f"{path}: averages only; run vllm bench serve with --save-result --save-detailed")
    errors = [str(e) for e in data.get("errors", []) if e]
    failed = max(len(errors), int(data.get("failed") or 0))
    facts = {k: str(data[k]) for k in ("model_id", "num_prompts", "request_rate", "max_concurrency") if k in data}
    facts["total_input_tokens"] = str(data.get("total_input_tokens", "unknown"))
    return ImportedRun(
        path=str(path),
        tool="vllm bench serve",
        ttft_seconds=_positive(path, data["ttfts"]) if not failed else (),
        failed=failed,
        first_error=errors[0] if errors else "",
        facts=facts,
    )


def _guidellm(path: Path, benchmarks: Sequence[Any]) -> ImportedRun:
    if len(benchmarks) != 1:
        raise UsageError(f"{path}: holds {len(benchmarks)} benchmarks (a sweep?): give a file of a single one")
    requests = benchmarks[0].get("requests")
    if not isinstance(requests, dict) or not isinstance(requests.get("successful"), list):
        raise UsageError(f"{path}: holds no single requests")
    rows = sorted(requests["successful"], key=_guidellm_start)
    broken = requests.get("errored") or []
    times = [row.get("time_to_first_token_ms") for row in rows]
    return ImportedRun(
        path=str(path),
        tool="guidellm",
        ttft_seconds=_positive(path, (t / 1000 if t is not None else None for t in times)) if not broken else (),
        failed=len(broken),
        first_error=str((broken[0].get("info") or {}).get("error") or "") if broken else "",
        facts={},
    )


def _guidellm_start(row: Mapping[str, Any]) -> float:
    timings = (row.get("info") or {}).get("timings") or {}
    return float(timings.get("request_start") or row.get("start_time") or 0.0)


def _aiperf(path: Path, rows: Sequence[Mapping[str, Any]]) -> ImportedRun:
    rows = [r for r in rows if r["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    rows = sorted(rows, key=lambda r: r["metadata"].get("request_start_ns") or 0)
    broken = [r for r in rows if r.get("error") or r["metadata"].get("was_cancelled")]
    times = []
    for row in rows if not broken else ():
        metric = (row.get("metrics") or {}).get("time_to_first_token") or {}
        value, unit = metric.get("value"), str(metric.get("unit", "ms"))
        if unit not in _SECONDS:
            raise UsageError(f"{path}: time_to_first_token in {unit!r}; known are {', '.join(_SECONDS)}")
        times.append(None if value is None else value * _SECONDS[unit])
    error = (broken[0].get("error") or {}) if broken else {}
    return ImportedRun(
        path=str(path),
        tool="aiperf",
        ttft_seconds=_positive(path, times),
        failed=len(broken),
        first_error=str(error.get("message") or error.get("type") or "cancelled") if broken else "",
        facts={"requests": str(len(rows))},
    )


def _positive(path: Path, values: Iterable[Any]) -> tuple[float, ...]:
    found = []
    for place, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise UsageError(
                f"{path}: request {place} has no time to first token ({value!r}): was the endpoint streaming?"
            )
        found.append(float(value))
    return tuple(found)


def compare_files(
    reference: ImportedRun, candidate: ImportedRun, *, policy: Policy, texts: Sequence[str] = ()
) -> Verdict:
    """Judge two result files; only regressions of ``ttft`` can be asked of them.

    Raises:
        ConfigError: a threshold that cannot be meant.
        UsageError: a threshold on something that result files do not tell.
    """
    thresholds = parse_thresholds(texts) if texts else default_thresholds(policy)
    for threshold in thresholds:
        if threshold.kind != "regression" or threshold.metric != "ttft" or threshold.against != "reference":
            raise UsageError(
                f"{threshold.text!r}: of result files only regressions of ttft over the reference can be asked"
            )
    try:
        _check(reference, candidate)
        findings = _findings(reference, candidate, thresholds, policy)
    except IncomparableError as error:
        findings = (Finding(name="comparable", outcome="inconclusive", text=str(error)),)
    if candidate.failed:
        text = f"{candidate.path}: {candidate.failed} failed requests, the first: {candidate.first_error or 'unknown'}"
        findings = (Finding(name="usable candidate", outcome="fail", text=text),)
    return Verdict(
        reference=reference.path,
        candidate=candidate.path,
        findings=findings,
        requests_per_arm=min(len(reference.ttft_seconds), len(candidate.ttft_seconds)),
        boots_per_arm=1,
        calibration="none: two files tell nothing of the machine's noise",
        spread=spread_of(reference.ttft_seconds, candidate.ttft_seconds, phase="of the result files"),
        notes=(f"unpaired: {reference.tool} and {candidate.tool} results, measured one after the other",),
    )


def _check(reference: ImportedRun, candidate: ImportedRun) -> None:
    if reference.tool != candidate.tool:
        raise IncomparableError(f"one file is of {reference.tool}, the other of {candidate.tool}")
    if reference.failed:
        why = reference.first_error or "unknown"
        raise IncomparableError(f"{reference.path}: {reference.failed} failed requests, the first: {why}")
    for key in sorted({*reference.facts, *candidate.facts}):
        a, b = reference.facts.get(key), candidate.facts.get(key)
        if a != b:
            raise IncomparableError(f"{key}: {a} in the reference, {b} in the candidate")


def _findings(
    reference: ImportedRun, candidate: ImportedRun, thresholds: Sequence[Threshold], policy: Policy
) -> tuple[Finding, ...]:
    if not reference.ttft_seconds or not candidate.ttft_seconds:
        raise IncomparableError("a file holds no requests")
    found, p_values = [], {}
    for place, threshold in enumerate(thresholds):
        q = threshold.quantile or policy.quantile
        margin = threshold.bound
        if threshold.floor is not None:
            from pytest_kvoffload.stats import quantile

            margin = max(margin, threshold.floor / quantile(reference.ttft_seconds, q))
        result = tail_regression(
            reference.ttft_seconds,
            candidate.ttft_seconds,
            quantile=q,
            margin=margin,
            alpha=policy.alpha,
            confidence=policy.confidence,
            paired=False,
            boots=([0] * len(reference.ttft_seconds), [0] * len(candidate.ttft_seconds)),
        )
        p_values[place] = result.p_value
        outcomes: dict[str, Outcome] = {"worse": "fail", "not_worse": "pass", "inconclusive": "inconclusive"}
        found.append((threshold, outcomes[result.decision], result))
    adjusted = holm_adjusted(p_values)
    return tuple(
        Finding(
            name=threshold.text,
            outcome="inconclusive" if outcome == "fail" and adjusted[place] > policy.alpha else outcome,
            text=sentence(result),
            tail=result,
            value=result.candidate_quantile,
            unit="seconds",
            p_value=result.p_value,
        )
        for place, (threshold, outcome, result) in enumerate(found)
    )
