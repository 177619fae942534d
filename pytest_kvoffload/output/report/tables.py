"""The tables of the report: results, tail, tier, configuration and its differences, environment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_kvoffload.engine.masking import mask_command, mask_environment, mask_value
from pytest_kvoffload.metrics.readings import HistogramReading
from pytest_kvoffload.output.report.series import Series, arm_names, tail
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.output.rows import (
    PhaseRow,
    QuantileCell,
    format_bytes,
    format_rate,
    format_seconds,
    phase_meters,
)
from pytest_kvoffload.records import Measurement

TAIL_ROWS = 40
"""Slowest requests of a phase and arm that the table lists; the slowest hundredth where that is less."""
FAILED_ROWS = 20


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
        ),
        rows=tuple(
            (
                one_line(row.arm, 40),
                one_line(row.phase, 40) + ("" if row.complete else " (interrupted)"),
                f"{row.n}" + (f" ({row.failed} failed)" if row.failed else ""),
                format_rate(row.device_rate),
                format_rate(row.external_rate),
                *(_cell(cell) for cell in row.ttft),
                format_bytes(row.store_bytes),
                format_bytes(row.load_bytes),
                "" if row.same_output is None else f"{row.same_output[0]}/{row.same_output[1]}",
            )
            for row in rows
        ),
        note="[a, b]: 95 % interval by order statistics. *: too few requests for this quantile, the slowest instead. "
        "-: the server does not expose it.",
    )


def slow_requests(series: Sequence[Series]) -> Table:
    """The tail of every phase and arm, slowest first, and the requests that failed."""
    rows, cut = [], 0
    for s in series:
        found = tail(s.points, TAIL_ROWS)
        cut += max(0, -(-len(s.points) // 100) - TAIL_ROWS)
        for p in found:
            rows.append(
                (
                    s.arm,
                    s.phase,
                    format_seconds(p.ttft_seconds),
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
    columns = ("arm", "phase", "TTFT", "session", "turn", "prefix tokens", "cached tokens", "sent at", "rank")
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


def delays(measurements: Sequence[Measurement]) -> Table | None:
    """Lookup and transfer times where a server tells them; ``None`` when none does."""
    rows = []
    for measurement, arm in zip(measurements, arm_names(measurements), strict=True):
        for phase in measurement.phases:
            meters = phase_meters(measurement, phase)
            for how, found in (("sync", meters.lookup_sync), ("async", meters.lookup_async)):
                for tier, reading in found.items():
                    if reading.count:
                        rows.append((arm, one_line(phase.name, 40), f"lookup, {how}", tier, *_histogram(reading)))
            for what, seconds, rate in (
                ("store", meters.store_seconds, meters.store_bandwidth),
                ("load", meters.load_seconds, meters.load_bandwidth),
            ):
                if seconds.value:
                    speed = "-" if rate.value is None else f"{format_bytes(rate.value)}/s"
                    rows.append(
                        (
                            arm,
                            one_line(phase.name, 40),
                            what,
                            "device and tier",
                            "-",
                            format_seconds(seconds.value),
                            speed,
                        )
                    )
    if not rows:
        return None
    return Table(
        columns=("arm", "phase", "what", "tier", "count", "total", "mean or bandwidth"),
        rows=tuple(rows),
        note="As the server's own metrics say; transfers may overlap, so that totals can exceed the time that passed.",
    )


def configuration(measurement: Measurement) -> dict[str, str]:
    """Return what defines an arm, key by key, as text."""
    server, connector = measurement.server, measurement.connector
    transfer = mask_value(server.kv_transfer_config)
    found = {
        "connector kind": connector.kind,
        **{f"connector {key}": _plain(mask_value(value, name=key)) for key, value in connector.options.items()},
        "connector args": shlex.join(mask_command(connector.args)),
        **{f"connector env {key}": value for key, value in mask_environment(connector.env).items()},
        "kv-transfer-config": json.dumps(transfer, indent=1, sort_keys=True, default=str)
        if transfer is not None
        else "none"
        if connector.kind == "recompute"
        else "not told",
        "model": server.model,
        "engine": server.engine_kind,
        "vLLM": server.vllm_version or "not told",
        "max model length": _number(server.max_model_len, "tokens"),
        "block size": _number(server.block_size_tokens, "tokens"),
        "device cache": _number(server.device_cache_tokens, "tokens"),
        **{f"server env {key}": value for key, value in mask_environment(server.environment).items()},
    }
    for name in type(measurement.workload).__dataclass_fields__:
        found[f"workload {name}"] = _plain(getattr(measurement.workload, name))
    return {key: value for key, value in found.items() if value}


def difference(measurements: Sequence[Measurement]) -> Table | None:
    """What differs between the arms; ``None`` with one arm."""
    if len(measurements) < 2:
        return None
    found = [configuration(m) for m in measurements]
    keys = list(dict.fromkeys(key for part in found for key in part))
    rows = tuple(
        (key, *(part.get(key, "-") for part in found))
        for key in keys
        if len({part.get(key, "-") for part in found}) > 1
    )
    note = "" if rows else "Nothing differs."
    return Table(columns=("setting", *arm_names(measurements)), rows=rows, note=note)


def environment(measurements: Sequence[Measurement]) -> Table:
    """Versions and machine, a column an arm; equal columns are joined."""
    names = arm_names(measurements)
    found = [dict(m.environment) for m in measurements]
    if len({json.dumps(part, sort_keys=True) for part in found}) == 1:
        names, found = ["all arms" if len(names) > 1 else names[0]], found[:1]
    keys = list(dict.fromkeys(key for part in found for key in part))
    return Table(columns=("", *names), rows=tuple((key, *(part.get(key, "-") for part in found)) for key in keys))


def server_command(measurement: Measurement) -> str:
    """Return the command that boots the arm's server again, secrets masked; empty for an attached one."""
    server = measurement.server
    if not server.command:
        return ""
    env = [f"{key}={value}" for key, value in mask_environment(server.environment).items()]
    return shlex.join([*(["env", *env] if env else []), *mask_command(server.command)])


def _cell(cell: QuantileCell) -> str:
    text = format_seconds(cell.seconds)
    if cell.seconds is not None and not cell.enough:
        return f"{text}*"
    if cell.low is None or cell.high is None:
        return text
    return f"{text} [{format_seconds(cell.low)}, {format_seconds(cell.high)}]"


def _histogram(reading: HistogramReading) -> tuple[str, str, str]:
    histogram = reading.histogram
    if histogram is None:
        return "-", "-", "-"
    return f"{histogram.count:g}", format_seconds(histogram.sum), format_seconds(histogram.mean)


def _number(value: int | None, unit: str) -> str:
    return "not told" if value is None else f"{value} {unit}"


def _plain(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
