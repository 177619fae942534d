"""A baseline for a terminal: its newest numbers beside the anchor's and the history's middle."""

from __future__ import annotations

import statistics

from pytest_kvoffload.gate.baseline import Baseline, Entry
from pytest_kvoffload.gate.thresholds import METRICS


def baseline_text(baseline: Baseline) -> str:
    """Return what is recorded, and how far the newest run has drifted from the anchor and the median of the history."""
    newest, anchor = baseline.newest, baseline.anchor
    lines = [
        str(baseline.key),
        f"newest {_line(newest)}",
        f"anchor {_line(anchor)}",
        f"{'':34} {'anchor':>12} {'median':>12} {'newest':>12} {'drift':>8}",
    ]
    for name in sorted({*newest.metrics, *anchor.metrics}):
        values = [entry.metrics[name] for entry in baseline.history if name in entry.metrics]
        before, after = anchor.metrics.get(name), newest.metrics.get(name)
        drift = f"{after / before - 1:+.1%}" if before and after is not None else "-"
        middle = statistics.median(values) if values else None
        cells = [_number(name, value) for value in (before, middle, after)]
        lines.append(f"{name:34} {cells[0]:>12} {cells[1]:>12} {cells[2]:>12} {drift:>8}")
    return "\n".join(lines)


def _line(entry: Entry) -> str:
    return (
        f"{entry.recorded_at}, vLLM {entry.vllm or 'unknown'}, configuration {entry.configuration}, commit "
        f"{entry.commit or 'unknown'}, {entry.size}"
    )


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "absent"
    metric = name.rpartition(".")[2].partition("_p")[0]
    return f"{value * 1000:.4g} ms" if METRICS.get(metric) == "seconds" else f"{value:.4g}"
