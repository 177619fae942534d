"""The plots: what each shows, as the JSON item that bokeh's script draws, with its words and its legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_kvoffload.output.report.series import BODY_POINTS, TAIL_POINTS, Point, Series, bands, pairs, thin
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.output.rows import PhaseRow, format_bytes, format_rate, format_seconds

COLOURS = ("#d4661a", "#2f7fc1", "#1a9a72", "#b65b9f", "#8f7d12", "#6f7f8a")
"""At least 3 to 1 against both backgrounds, told apart by the common kinds of colour blindness."""
DASHES = ("solid", "dashed", "dotted", "dotdash")
MARKERS = ("circle", "square", "triangle", "diamond")
_HOVER = [
    ("arm, phase", "@label"),
    ("TTFT", "@ttft"),
    ("session", "@session, turn @turn"),
    ("prefix", "@prefix tokens"),
    ("cached", "@cached tokens"),
    ("sent at", "@sent s"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One entry of a legend, drawn as HTML so that it wraps and can be read aloud."""

    label: str
    colour: str
    style: str
    """``solid``, ``dashed`` ... or the name of a marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure of the report. ``item`` is what ``Bokeh.embed.embed_item`` takes."""

    name: str
    title: str
    caption: str
    item: Mapping[str, Any]
    legend: tuple[Key, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The text alternative: the numbers that the figure shows."""


def distribution(series: Sequence[Series], rows: Sequence[PhaseRow]) -> Plot:
    """TTFT of every phase and arm: the distribution from its fastest to its slowest request."""
    most = max((len(s.points) for s in series), default=1)
    figure = _figure("TTFT (log scale)", "percentile", x_axis_type="log", y_axis_type="log", y_range=(1.05, 0.5 / most))
    ticks = {1.0: "fastest", 0.5: "p50", 0.1: "p90", 0.01: "p99", 0.001: "p99.9", 0.0001: "p99.99", 0.00001: "p99.999"}
    shown = {share: text for share, text in ticks.items() if share >= 0.5 / most}
    figure.yaxis.ticker = list(shown)
    figure.yaxis.major_label_overrides = shown
    drawn = []
    for s in series:
        points = thin(s.points)
        if not points:
            continue
        colour, dash = _colour(s), DASHES[s.phase_index % len(DASHES)]
        source = _source(points, s)
        found = bands(s.points)
        if found:
            figure.harea(
                y=[b.slower_share for b in found],
                x1=[b.low for b in found],
                x2=[b.high for b in found],
                fill_color=colour,
                fill_alpha=0.16,
            )
        figure.line("x", "share", source=source, line_color=colour, line_dash=dash, line_width=2)
        drawn.append(figure.scatter("x", "share", source=source, size=5, color=colour, marker=_marker(s), alpha=0.8))
    _time_ticks(figure.xaxis, series)
    _hover(figure, drawn, _HOVER)
    return Plot(
        name="distribution",
        title="Time to first token, by arm and phase",
        caption="Each point is a request; further left is faster, further up is deeper in the tail. Shaded: 95 % "
        "intervals by order statistics. " + _thinned(series),
        item=_item(figure, "distribution"),
        legend=tuple(Key(label=s.label, colour=_colour(s), style=DASHES[s.phase_index % 4]) for s in series),
        columns=("arm", "phase", "n", *(f"p{cell.q * 100:g}" for cell in (rows[0].ttft if rows else ()))),
        rows=tuple(
            (
                one_line(row.arm),
                one_line(row.phase),
                str(row.n),
                *(
                    format_seconds(c.seconds) + ("" if c.enough or c.seconds is None else " (slowest)")
                    for c in row.ttft
                ),
            )
            for row in rows
        ),
    )


def paired(series: Sequence[Series], reference: int) -> Plot | None:
    """The same request in the reference arm and in another; ``None`` without a request that both served."""
    base = [s for s in series if s.arm_index == reference]
    figure = _figure("TTFT in the reference", "TTFT in the other arm", x_axis_type="log", y_axis_type="log")
    drawn, legend, rows, bounds = [], [], [], []
    for arm in sorted({s.arm_index for s in series} - {reference}):
        for s in (s for s in series if s.arm_index == arm):
            found = pairs([b for b in base if b.phase == s.phase], [s])
            if not found:
                continue
            kept = _thin_pairs(found)
            source = _source([other for _, other in kept], s)
            source.data["reference"] = [_digits(first.ttft_seconds) for first, _ in kept]
            source.data["reference_text"] = [format_seconds(first.ttft_seconds) for first, _ in kept]
            bounds += [value for a, b in kept for value in (a.ttft_seconds, b.ttft_seconds)]
            drawn.append(
                figure.scatter("reference", "x", source=source, size=7, color=_colour(s), marker=_marker(s), alpha=0.7)
            )
            legend.append(Key(label=s.label, colour=_colour(s), style=_marker(s)))
            ratios = sorted(b.ttft_seconds / a.ttft_seconds for a, b in found)
            faster = sum(ratio < 1 for ratio in ratios)
            rows.append((s.arm, s.phase, str(len(found)), str(faster), f"{ratios[len(ratios) // 2]:.3g}"))
    if not rows:
        return None
    low, high = min(bounds), max(bounds)
    _time_ticks(figure.xaxis, series)
    _time_ticks(figure.yaxis, series)
    figure.line([low, high], [low, high], line_dash="dashed", line_width=1, line_color="#808080")
    _hover(figure, drawn, [*_HOVER[:2], ("reference", "@reference_text"), *_HOVER[2:]])
    return Plot(
        name="paired",
        title=f"The same request in both arms (reference: {base[0].arm})",
        caption="Below the dashed line the request was faster than in the reference. "
        + _thinned([s for s in series if s.arm_index != reference]),
        item=_item(figure, "paired"),
        legend=tuple(legend),
        columns=("arm", "phase", "pairs", "faster than the reference", "middle ratio to the reference"),
        rows=tuple(rows),
    )


def hit_rates(rows: Sequence[PhaseRow]) -> Plot | None:
    """Share of prompt tokens by what served them; ``None`` when no server tells."""
    told = [row for row in rows if row.device_rate is not None or row.external_rate is not None]
    if not told:
        return None
    names = _names(told)
    parts: dict[str, list[float]] = {"device": [row.device_rate or 0.0 for row in told]}
    tiers = list(dict.fromkeys(tier for row in told for tier in row.tier_rates))
    for tier in tiers:
        parts[tier] = [row.tier_rates.get(tier, 0.0) for row in told]
    rest = [max(0.0, (row.external_rate or 0.0) - sum(row.tier_rates.values())) for row in told]
    if not tiers or any(value > 0.005 for value in rest):
        parts["tier (not told apart)" if tiers else "tier"] = rest
    colours = [COLOURS[5], *COLOURS[:5]][: len(parts)]
    figure = _bars(names, "share of prompt tokens", x_range=(0, 1.05))
    from bokeh.models import ColumnDataSource

    source = ColumnDataSource(data={"name": names, **{f"part{i}": values for i, values in enumerate(parts.values())}})
    drawn = figure.hbar_stack(
        [f"part{i}" for i in range(len(parts))], y="name", height=0.6, source=source, color=colours
    )
    for (part, _), renderer in zip(parts.items(), drawn, strict=True):
        _hover(figure, [renderer], [("phase", "@name"), (part, f"@{renderer.name}{{0.000}}")])
    return Plot(
        name="hits",
        title="Hit rate by tier",
        caption="Prompt tokens that the device's cache or a tier supplied, over all prompt tokens of the phase."
        + _untold(len(rows) - len(told)),
        item=_item(figure, "hits"),
        legend=tuple(Key(label=p, colour=c, style="square") for p, c in zip(parts, colours, strict=True)),
        columns=("arm", "phase", "device", "tier", "tier told apart"),
        rows=tuple(
            (
                one_line(row.arm),
                one_line(row.phase),
                format_rate(row.device_rate),
                format_rate(row.external_rate),
                ", ".join(f"{tier} {rate:.2f}" for tier, rate in row.tier_rates.items()) or "-",
            )
            for row in rows
        ),
    )


def traffic(rows: Sequence[PhaseRow]) -> Plot | None:
    """Bytes stored to and loaded from the tier; ``None`` when no server tells."""
    told = [row for row in rows if row.store_bytes is not None or row.load_bytes is not None]
    if not told:
        return None
    from bokeh.models import ColumnDataSource
    from bokeh.transform import dodge

    names = _names(told)
    figure = _bars(names, "MiB")
    colours = {"stored": COLOURS[4], "loaded": COLOURS[1]}
    amounts = {
        "stored": [row.store_bytes or 0.0 for row in told],
        "loaded": [row.load_bytes or 0.0 for row in told],
    }
    for (what, values), shift in zip(amounts.items(), (-0.18, 0.18), strict=True):
        mib = [value / 2**20 for value in values]
        source = ColumnDataSource(data={"name": names, "mib": mib, "text": [format_bytes(value) for value in values]})
        bar = figure.hbar(
            y=dodge("name", shift, range=figure.y_range), right="mib", height=0.32, source=source, color=colours[what]
        )
        _hover(figure, [bar], [("phase", "@name"), (what, "@text")])
    return Plot(
        name="traffic",
        title="Bytes stored and loaded",
        caption="What moved between the device and the tier in each phase." + _untold(len(rows) - len(told)),
        item=_item(figure, "traffic"),
        legend=tuple(Key(label=what, colour=colour, style="square") for what, colour in colours.items()),
        columns=("arm", "phase", "stored", "loaded"),
        rows=tuple(
            (one_line(row.arm), one_line(row.phase), format_bytes(row.store_bytes), format_bytes(row.load_bytes))
            for row in rows
        ),
    )


def timeline(series: Sequence[Series]) -> Plot:
    """When each request was sent, and how long it waited."""
    figure = _figure("sent, seconds since the measurement began", "TTFT (log scale)", y_axis_type="log")
    drawn, rows = [], []
    for s in series:
        points = thin(s.points)
        if not points:
            continue
        drawn.append(
            figure.scatter(
                "begin", "x", source=_source(points, s), size=6, color=_colour(s), marker=_marker(s), alpha=0.7
            )
        )
        times = [p.begin_seconds for p in s.points]
        slowest = s.points[-1]
        rows.append(
            (s.arm, s.phase, f"{min(times):.2f} s", f"{max(times):.2f} s", format_seconds(slowest.ttft_seconds))
        )
    _time_ticks(figure.yaxis, series)
    _hover(figure, drawn, _HOVER)
    return Plot(
        name="timeline",
        title="Requests over time",
        caption="Phases follow one another; pauses between them are not drawn. " + _thinned(series),
        item=_item(figure, "timeline"),
        legend=tuple(Key(label=s.label, colour=_colour(s), style=_marker(s)) for s in series),
        columns=("arm", "phase", "first sent", "last sent", "slowest TTFT"),
        rows=tuple(rows),
    )


def _figure(x_label: str, y_label: str, **how: Any) -> Any:
    from bokeh.plotting import figure

    made = figure(
        height=380, sizing_mode="stretch_width", tools="pan,box_zoom,reset,save", toolbar_location="above", **how
    )
    made.toolbar.logo = None
    made.toolbar.active_drag = None  # a finger that scrolls the page must not be caught by a plot
    made.xaxis.axis_label, made.yaxis.axis_label = x_label, y_label
    made.background_fill_alpha = made.border_fill_alpha = 0
    made.outline_line_color = None
    made.min_border_right = 12
    return made


def _bars(names: list[str], label: str, **how: Any) -> Any:
    made = _figure(label, "", y_range=list(reversed(names)), **how)
    made.height = 110 + 34 * len(names)
    made.ygrid.grid_line_color = None
    if "x_range" not in how:
        made.x_range.start = 0
    return made


def _time_ticks(axis: Any, series: Sequence[Series]) -> None:
    """Put ticks at round times and label them with their unit; a log axis of bokeh labels powers of ten only."""
    times = [s.points[i].ttft_seconds for s in series if s.points for i in (0, -1)]
    low, high = min(times), max(times)
    steps = (1, 2, 5) if high / low < 100 else (1, 3) if high / low < 1000 else (1,)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    axis.ticker = ticks
    axis.major_label_overrides = {tick: format_seconds(tick) for tick in ticks}


def _hover(figure: Any, renderers: list[Any], tooltips: list[tuple[str, str]]) -> None:
    from bokeh.models import HoverTool

    if renderers:
        figure.add_tools(HoverTool(renderers=renderers, tooltips=tooltips, visible=False))


def _source(points: Sequence[Point], series: Series) -> Any:
    from bokeh.models import ColumnDataSource

    return ColumnDataSource(
        data={
            "x": [_digits(p.ttft_seconds) for p in points],
            "share": [_digits(p.slower_share) for p in points],
            "begin": [_digits(p.begin_seconds) for p in points],
            "label": [series.label] * len(points),
            "ttft": [format_seconds(p.ttft_seconds) for p in points],
            "session": [p.sample.session for p in points],
            "turn": [p.sample.turn for p in points],
            "prefix": [p.sample.prefix_tokens for p in points],
            "cached": ["?" if p.sample.cached_tokens is None else str(p.sample.cached_tokens) for p in points],
            "sent": [f"{p.sample.sent_at_seconds:.2f}" for p in points],
        }
    )


def _item(figure: Any, name: str) -> Mapping[str, Any]:
    from bokeh.core.types import ID
    from bokeh.embed import json_item

    return dict(json_item(figure, target=ID(f"plot-{name}")))


def _thin_pairs(found: list[tuple[Point, Point]]) -> list[tuple[Point, Point]]:
    kept = {id(point) for point in thin([other for _, other in found])}
    return [pair for pair in found if id(pair[1]) in kept]


def _thinned(series: Sequence[Series]) -> str:
    cut = [s for s in series if len(s.points) > BODY_POINTS + TAIL_POINTS]
    if not cut:
        return "Every request is drawn."
    return (
        f"Of series with more than {BODY_POINTS + TAIL_POINTS} requests the slowest {TAIL_POINTS} are all drawn and "
        f"{BODY_POINTS} of the others, evenly by rank; tables and intervals rest on all of them."
    )


def _untold(count: int) -> str:
    return f" {count} phases are missing: their server does not expose it." if count else ""


def _names(rows: Sequence[PhaseRow]) -> list[str]:
    names: list[str] = []
    for row in rows:
        base = f"{one_line(row.arm, 16)} {one_line(row.phase, 12)}"
        name, count = base, 1
        while name in names:
            count += 1
            name = f"{base} #{count}"
        names.append(name)
    return names


def _colour(series: Series) -> str:
    return COLOURS[series.arm_index % len(COLOURS)]


def _marker(series: Series) -> str:
    return MARKERS[series.phase_index % len(MARKERS)]


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
