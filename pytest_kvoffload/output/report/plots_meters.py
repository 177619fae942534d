"""The plots of the server's own meters: which tier served, what moved, how long lookups and transfers took."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kvoffload.output.report.arms import ReportArm
from pytest_kvoffload.output.report.delays import Delay
from pytest_kvoffload.output.report.figures import (
    COLOURS,
    Key,
    Plot,
    band_names,
    bars,
    digits,
    hover,
    spoken,
    time_ticks,
    to_item,
)
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.output.rows import PhaseRow, format_bytes, format_rate, format_seconds, phase_meters


def hit_rates(rows: Sequence[PhaseRow]) -> Plot | None:
    """Share of prompt tokens by what served them; ``None`` when no server tells."""
    told = [row for row in rows if row.device_rate is not None or row.external_rate is not None]
    if not told:
        return None
    names = band_names((row.arm, row.phase) for row in told)
    parts: dict[str, list[float]] = {"device": [row.device_rate or 0.0 for row in told]}
    tiers = list(dict.fromkeys(tier for row in told for tier in row.tier_rates))
    for tier in tiers:
        parts[tier] = [row.tier_rates.get(tier, 0.0) for row in told]
    rest = [max(0.0, (row.external_rate or 0.0) - sum(row.tier_rates.values())) for row in told]
    if not tiers or any(value > 0.005 for value in rest):
        parts["tier (not told apart)" if tiers else "tier"] = rest
    colours = [COLOURS[5], *COLOURS[:5]][: len(parts)]
    figure = bars(names, "share of prompt tokens", x_range=(0, 1.05))
    from bokeh.models import ColumnDataSource

    source = ColumnDataSource(data={"name": names, **{f"part{i}": values for i, values in enumerate(parts.values())}})
    drawn = figure.hbar_stack(
        [f"part{i}" for i in range(len(parts))], y="name", height=0.6, source=source, color=colours
    )
    for (part, _), renderer in zip(parts.items(), drawn, strict=True):
        hover(figure, [renderer], [("phase", "@name"), (part, f"@{renderer.name}{{0.000}}")])
    return Plot(
        name="hits",
        title="Hit rate by tier",
        caption="Prompt tokens that the device's cache or a tier supplied, over all prompt tokens of the phase."
        + _untold(len(rows) - len(told)),
        words=spoken(
            [
                f"{name}: " + ", ".join(f"{part} {values[i]:.2f}" for part, values in parts.items())
                for i, name in enumerate(names)
            ]
        ),
        item=to_item(figure, "hits"),
        legend=tuple(Key(label=p, colour=c, style="square") for p, c in zip(parts, colours, strict=True)),
        columns=("arm", "phase", "device", "tier", "tier told apart"),
        rows=tuple(
            (
                one_line(row.arm, 40),
                one_line(row.phase, 40),
                format_rate(row.device_rate),
                format_rate(row.external_rate),
                ", ".join(f"{tier} {rate:.2f}" for tier, rate in row.tier_rates.items()) or "-",
            )
            for row in rows
        ),
    )


def traffic(arms: Sequence[ReportArm]) -> Plot | None:
    """Bytes stored and loaded by phase and tier; ``None`` when no server tells."""
    found: list[tuple[str, str, str, float | None, float | None]] = []
    for arm in arms:
        for phase in arm.phase_names:
            meters = phase_meters(arm.first, *(p for _, p in arm.pieces(phase)))
            found.append((arm.name, phase, "host", meters.store_bytes.value, meters.load_bytes.value))
            for tier, moved in meters.tiers.items():
                found.append((arm.name, phase, tier, moved.write_bytes.value, moved.read_bytes.value))
    told = [entry for entry in found if entry[3] is not None or entry[4] is not None]
    if not told:
        return None
    from bokeh.models import ColumnDataSource
    from bokeh.transform import dodge

    several = len({entry[2] for entry in told}) > 1
    names = band_names((arm, phase, tier) if several else (arm, phase) for arm, phase, tier, _, _ in told)
    figure = bars(names, "MiB")
    colours = {"stored": COLOURS[4], "loaded": COLOURS[1]}
    amounts = {"stored": [entry[3] or 0.0 for entry in told], "loaded": [entry[4] or 0.0 for entry in told]}
    for (what, values), shift in zip(amounts.items(), (-0.18, 0.18), strict=True):
        mib = [digits(value / 2**20) for value in values]
        source = ColumnDataSource(data={"name": names, "mib": mib, "text": [format_bytes(value) for value in values]})
        bar = figure.hbar(
            y=dodge("name", shift, range=figure.y_range), right="mib", height=0.32, source=source, color=colours[what]
        )
        hover(figure, [bar], [("phase", "@name"), (what, "@text")])
    return Plot(
        name="traffic",
        title="Bytes stored and loaded",
        caption="What moved between the device and the host tier"
        + (", and between the host tier and those behind it," if several else "")
        + " in each phase."
        + _untold(len(found) - len(told)),
        words=spoken(
            [
                f"{name}: {format_bytes(entry[3])} stored, {format_bytes(entry[4])} loaded"
                for name, entry in zip(names, told, strict=True)
            ]
        ),
        item=to_item(figure, "traffic"),
        legend=tuple(Key(label=what, colour=colour, style="square") for what, colour in colours.items()),
        columns=("arm", "phase", "tier", "stored", "loaded"),
        rows=tuple(
            (one_line(e[0], 40), one_line(e[1], 40), one_line(e[2], 40), format_bytes(e[3]), format_bytes(e[4]))
            for e in found
        ),
    )


def delay_ranges(delays: Sequence[Delay]) -> Plot | None:
    """How long lookups and transfers took, by the server's histograms; ``None`` when nothing took any time."""
    told = [d for d in delays if d.mean_seconds]
    if not told:
        return None
    from bokeh.models import ColumnDataSource

    names = band_names((d.arm, d.phase, d.what) for d in told)
    figure = bars(names, "time (log scale)", x_axis_type="log")
    means = [d.mean_seconds or 0.0 for d in told]
    ranges = [(name, d) for name, d in zip(names, told, strict=True) if d.p50 and d.p99]
    text = {name: _delay_words(d) for name, d in zip(names, told, strict=True)}
    if ranges:
        source = ColumnDataSource(
            data={
                "name": [name for name, _ in ranges],
                "low": [digits(_drawable(d.p50)) for _, d in ranges if d.p50],
                "high": [digits(d.p99[1]) for _, d in ranges if d.p99],
                "text": [text[name] for name, _ in ranges],
            }
        )
        bar = figure.hbar(y="name", left="low", right="high", height=0.4, source=source, color=COLOURS[1], alpha=0.45)
        hover(figure, [bar], [("", "@name"), ("", "@text")])
    source = ColumnDataSource(
        data={"name": names, "mean": [digits(value) for value in means], "text": list(text.values())}
    )
    dot = figure.scatter("mean", "name", source=source, size=10, marker="diamond", color=COLOURS[0])
    hover(figure, [dot], [("", "@name"), ("", "@text")])
    edges = [*means, *(bound for _, d in ranges if d.p50 and d.p99 for bound in (_drawable(d.p50), d.p99[1]))]
    figure.x_range.start, figure.x_range.end = min(edges) / 1.5, max(edges) * 1.5
    time_ticks(figure.xaxis, edges)
    return Plot(
        name="delays",
        title="Lookups and transfers",
        caption="As the server's own metrics say. A bar runs from the lower bound of the p50 to the upper bound of the "
        "p99: a histogram tells in which bucket they lie, no more. Without a bar the server counts the total only.",
        words=spoken([f"{name}: {words}" for name, words in text.items()]),
        item=to_item(figure, "delays"),
        legend=(
            Key(label="mean", colour=COLOURS[0], style="diamond"),
            *((Key(label="p50 to p99", colour=COLOURS[1], style="square"),) if ranges else ()),
        ),
        columns=("arm", "phase", "what", "count", "total", "mean", "p50 within", "p99 within", "bandwidth"),
        rows=tuple(
            (
                d.arm,
                d.phase,
                d.what,
                "-" if d.count is None else f"{d.count:g}",
                format_seconds(d.total_seconds),
                format_seconds(d.mean_seconds),
                _bounds(d.p50),
                _bounds(d.p99),
                "-" if d.bytes_per_second is None else f"{format_bytes(d.bytes_per_second)}/s",
            )
            for d in delays
        ),
    )


def _drawable(bounds: tuple[float, float]) -> float:
    """The lowest bucket begins at 0, which a log axis does not have: its bar begins at a tenth of its bound."""
    return bounds[0] or bounds[1] / 10


def _delay_words(delay: Delay) -> str:
    text = f"mean {format_seconds(delay.mean_seconds)}"
    text += "" if delay.count is None else f" of {delay.count:g}"
    return text + (f", p99 at most {format_seconds(delay.p99[1])}" if delay.p99 else "")


def _bounds(bounds: tuple[float, float] | None) -> str:
    return "-" if bounds is None else f"{format_seconds(bounds[0])} to {format_seconds(bounds[1])}"


def _untold(count: int) -> str:
    return f" {count} phases are missing: their server does not expose it." if count else ""
