"""Baselines in the formats of tools that draw histories: Bencher, github-action-benchmark, Apache Otava."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from pytest_kvoffload.gate.baseline import Baseline


def bencher(baselines: Sequence[Baseline]) -> str:
    """Return Bencher Metric Format: benchmark, then measure, then value (``bencher run --adapter json``).

    Bencher's own measure ``latency`` is in nanoseconds; counts and shares get measures of their own.
    """
    document: dict[str, dict[str, dict[str, float]]] = {}
    for baseline in baselines:
        for name, value in baseline.newest.metrics.items():
            measure, number = ("latency", value * 1e9) if _is_time(name) else (name.rpartition(".")[2], value)
            document.setdefault(f"{baseline.key.connector}/{name}", {})[measure.replace("_", "-")] = {"value": number}
    return json.dumps(document, indent=1) + "\n"


def github_action_benchmark(baselines: Sequence[Baseline]) -> str:
    """Return the list that its tool ``customSmallerIsBetter`` reads; a hit rate is given as what missed."""
    rows = []
    for baseline in baselines:
        newest = baseline.newest
        extra = f"{baseline.key}; vLLM {newest.vllm}, {newest.size}"
        for name, value in newest.metrics.items():
            if _is_time(name):
                row = {"name": name, "unit": "ms", "value": value * 1000}
            elif name.endswith("hit_rate"):
                row = {"name": name.removesuffix("hit_rate") + "miss_rate", "unit": "share", "value": 1.0 - value}
            else:
                row = {"name": name, "unit": "count", "value": value}
            rows.append({**row, "name": f"{baseline.key.connector}/{row['name']}", "extra": extra})
    return json.dumps(rows, indent=1) + "\n"


def otava_csv(baseline: Baseline) -> str:
    """Return the history of one baseline as CSV: a column ``time``, attributes, and a column per metric."""
    names = sorted({name for entry in baseline.history for name in entry.metrics})
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["time", "commit", "configuration", "vllm", *(column(name) for name in names)])
    for entry in baseline.history:
        values = [entry.metrics.get(name) for name in names]
        cells = ["" if value is None else repr(value) for value in values]
        writer.writerow([entry.recorded_at, entry.commit or "", entry.configuration, entry.vllm or "", *cells])
    return sink.getvalue()


def otava_config(baseline: Baseline, csv_path: str) -> str:
    """Return the ``otava.yaml`` that reads :func:`otava_csv`: which way is better stands there."""
    import yaml

    names = sorted({name for entry in baseline.history for name in entry.metrics})
    metrics = {
        column(name): {"column": column(name), "direction": 1 if name.endswith("hit_rate") else -1} for name in names
    }
    test = {
        "type": "csv",
        "file": csv_path,
        "time_column": "time",
        "attributes": ["commit", "configuration", "vllm"],
        "metrics": metrics,
        "csv_options": {"delimiter": ",", "quote_char": '"'},
    }
    return yaml.safe_dump({"tests": {f"kvoffload.{baseline.key.connector}": test}}, sort_keys=False)


def column(name: str) -> str:
    """Return a metric's name without dots, which Otava uses itself."""
    return name.replace(".", "_")


def _is_time(name: str) -> bool:
    return "_p" in name.rpartition(".")[2] and not name.endswith("preemptions")
