"""The tables of the report: results, what was judged, the tail, failed requests, use of the device cache, events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from pytest_kvoffload.metrics import query
from pytest_kvoffload.output.report.arms import ReportArm
from pytest_kvoffload.output.report.document import CheckLine, Finding
from pytest_kvoffload.output.report.series import Series, tail
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.output.rows import PhaseRow, format_bytes, format_rate, format_seconds, quantile_text, tier_hits

TAIL_ROWS = 40
"""Slowest requests of a phase and arm that the table lists; the slowest hundredth where that is less."""
FAILED_ROWS = 20
USAGE = {"vllm:kv_cache_usage_perc": "device", "vllm:kv_offload_cpu_cache_usage_perc": "host tier (pinned)"}
"""Gauges of vLLM, shares in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns and rows of text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def results(rows: Sequence[PhaseRow]) -> Table:
    """One row a phase and arm: the table of the terminal."""
    quantiles = rows[0].ttft if rows else ()
    return Table(
        columns=(
            *("arm", "phase", "n", "device hits", "tier hits"),
            *(f"TTFT p{cell.q * 100:g}" for cell in quantiles),
            *("stored", "loaded", "same output"),
            *(("verdict",) if any(row.verdict for row in rows) else ()),
        ),
        rows=tuple(
            (
                one_line(row.arm, 40),
                one_line(row.phase, 40) + ("" if row.complete else " (interrupted)"),
                f"{row.n}" + (f" ({row.failed} failed)" if row.failed else ""),
                format_rate(row.device_rate),
                tier_hits(row),
                *(quantile_text(cell, interval=True) for cell in row.ttft),
                format_bytes(row.store_bytes),
                format_bytes(row.load_bytes),
                "" if row.same_output is None else f"{row.same_output[0]}/{row.same_output[1]}",
                *((row.verdict,) if any(other.verdict for other in rows) else ()),
            )
            for row in rows
        ),
        note="[a, b]: 95 % interval by order statistics. *: too few requests for this quantile, the slowest instead. "
        "-: the server does not expose it.",
    )


def slow_requests(series: Sequence[Series]) -> Table:
    """The tail of every phase and arm, slowest first, and the requests that failed."""
    rows, cut = [], 0
    blocks = any(p.blocks > 1 for s in series for p in s.points[:1])
    for s in series:
        found = tail(s.points, TAIL_ROWS)
        cut += max(0, -(-len(s.points) // 100) - TAIL_ROWS)
        for p in found:
            rows.append(
                (
                    s.arm,
                    s.phase,
                    format_seconds(p.ttft_seconds),
                    *((str(p.block),) if blocks else ()),
                    str(p.sample.session),
                    str(p.sample.turn),
                    str(p.sample.prefix_tokens),
                    "not told" if p.sample.cached_tokens is None else str(p.sample.cached_tokens),
                    f"{p.sample.sent_at_seconds:.3f} s",
                    f"{p.rank} of {p.n}",
                )
            )
    note = "The slowest hundredth of each phase (at least 5 requests); sent at: since the phase began."
    if cut:
        note += f" {cut} more requests of the slowest hundredths are not listed: {TAIL_ROWS} of a phase are."
    named = ("arm", "phase", "TTFT", *(("block",) if blocks else ()), "session", "turn")
    columns = (*named, "prefix tokens", "cached tokens", "sent at", "rank")
    return Table(columns=columns, rows=tuple(rows), note=note)


def failed_requests(series: Sequence[Series]) -> Table | None:
    """Requests that failed, with what the server said; ``None`` when there are none."""
    rows, total = [], 0
    for s in series:
        total += len(s.failed)
        for sample in s.failed[:FAILED_ROWS]:
            status = "-" if sample.status is None else str(sample.status)
            rows.append(
                (s.arm, s.phase, str(sample.session), str(sample.turn), status, sample.error or "no first token came")
            )
    if not total:
        return None
    note = f"{total} requests failed; {len(rows)} are listed."
    return Table(columns=("arm", "phase", "session", "turn", "status", "error"), rows=tuple(rows), note=note)


def judged(findings: Sequence[Finding]) -> Table | None:
    """Numbers of what was judged; ``None`` where nothing has any."""
    rows = []
    for finding in findings:
        found = finding.tail
        if found is None:
            continue
        rows.append(
            (
                one_line(finding.name),
                finding.outcome,
                format_seconds(found.reference_seconds),
                format_seconds(found.candidate_seconds),
                f"{_ratio(found.ratio)} [{_ratio(found.low)}, {_ratio(found.high)}]",
                f"{1 + found.margin:.3f}",
                str(found.n),
                f"{found.p_value:.2g}",
            )
        )
    if not rows:
        return None
    return Table(
        columns=("what", "outcome", "reference", "candidate", "ratio", "allowed", "n", "p"),
        rows=tuple(rows),
        note="ratio: candidate over reference, with its interval; p: of the test that it is slower by more than the "
        "margin; n: requests per arm.",
    )


def checks(found: Sequence[CheckLine]) -> Table | None:
    """What was looked at before the boots, what needs attention first; ``None`` where nothing was recorded."""
    if not found:
        return None
    order = ("error", "fail", "warning", "warn")
    ranked = sorted(found, key=lambda line: order.index(line.outcome) if line.outcome in order else len(order))
    return Table(
        columns=("arm", "what", "check", "outcome", "what was seen"),
        rows=tuple((one_line(c.arm, 40), c.kind, one_line(c.name), c.outcome, c.text) for c in ranked),
    )


def device_usage(arms: Sequence[ReportArm]) -> Table | None:
    """Share of the caches in use when each phase began and ended; ``None`` where no server tells."""
    rows = []
    for arm in arms:
        for phase in arm.phase_names:
            for metric, what in USAGE.items():
                found = [s for _, p in arm.pieces(phase) for s in query.series(p.delta, metric)]
                if not found:
                    continue
                before = [s.before for s in found if s.before is not None]
                after = [s.after for s in found]
                capacity = arm.first.server.device_cache_tokens if what == "device" else None
                rows.append(
                    (
                        arm.name,
                        one_line(phase, 40),
                        what,
                        f"{mean(before):.3f}" if before else "-",
                        f"{mean(after):.3f}",
                        "-" if capacity is None else f"{capacity} tokens",
                    )
                )
    if not rows:
        return None
    return Table(
        columns=("arm", "phase", "cache", "when it began", "when it ended", "capacity"),
        rows=tuple(rows),
        note="Share in use by requests at the two moments when the metrics were read: no request runs then, so that "
        "what is merely kept for reuse does not count and 0 is the usual value. Nothing is read during a phase, for a "
        "scrape would hold up the very requests that are timed.",
    )


def kv_events(arms: Sequence[ReportArm]) -> Table | None:
    """KV cache events by replica, kind and medium; ``None`` where nothing listened to any."""
    rows: list[tuple[str, ...]] = []
    notes = ["What the engines themselves published: a block of a tier is one of its chunks."]
    for arm in arms:
        for phase in arm.phase_names:
            logs = [piece.kv_events for _, piece in arm.pieces(phase) if piece.kv_events is not None]
            counted: dict[tuple[str, str, str], tuple[int, int]] = {}
            for count in (count for log in logs for count in log.counts):
                key = (count.replica, count.kind, count.medium or "not told")
                events, blocks = counted.get(key, (0, 0))
                counted[key] = (events + count.events, blocks + count.blocks)
            for (replica, kind, medium), (events, blocks) in sorted(counted.items()):
                told = tuple(one_line(text, 40) for text in (arm.name, phase, replica, kind, medium))
                rows.append((*told, str(events), "-" if kind == "cleared" else str(blocks)))
            if logs and not counted:
                rows.append((one_line(arm.name, 40), one_line(phase, 40), "-", "none", "-", "0", "0"))
            lost = sum(log.lost_batches for log in logs)
            if lost:
                notes.append(f"{one_line(arm.name, 40)}, {one_line(phase, 40)}: {lost} batches lost, lower bounds.")
    if not rows:
        return None
    return Table(
        columns=("arm", "phase", "replica", "event", "medium", "events", "blocks"),
        rows=tuple(rows),
        note=" ".join(notes),
    )


def _ratio(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.3f}"
