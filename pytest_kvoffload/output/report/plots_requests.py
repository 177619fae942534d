"""The plots of single requests: how long they waited, which were slow in both arms, when, and what was cached."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kvoffload.output.report.figures import (
    HOVER,
    Key,
    Plot,
    colour_of,
    dash_of,
    digits,
    ends,
    hover,
    marker_of,
    new_figure,
    requests_source,
    spoken,
    thinned,
    time_ticks,
    to_item,
)
from pytest_kvoffload.output.report.series import Point, Series, bands, pairs, thin
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.output.rows import PhaseRow, format_seconds

WINDOWS = 60
"""Most points of a series in the plot of the hit rate over time."""
_TICKS = {1.0: "fastest", 0.5: "p50", 0.1: "p90", 0.01: "p99", 0.001: "p99.9", 0.0001: "p99.99", 0.00001: "p99.999"}


def distribution(series: Sequence[Series], rows: Sequence[PhaseRow], *, name: str, title: str) -> Plot:
    """TTFT of these phases and arms: the distribution from its fastest to its slowest request.

    Args:
        series: with at least one request between them.
        rows: the numbers of the same phases and arms.
        name: of the figure, for its identifiers.
        title: of the figure.
    """
    most = max((len(s.points) for s in series), default=1)
    figure = new_figure(
        "TTFT (log scale)", "percentile", x_axis_type="log", y_axis_type="log", y_range=(1.05, 0.5 / most)
    )
    shown = {share: text for share, text in _TICKS.items() if share >= 0.5 / most}
    figure.yaxis.ticker = list(shown)
    figure.yaxis.major_label_overrides = shown
    drawn = []
    for s in series:
        points = thin(s.points)
        if not points:
            continue
        colour, source = colour_of(s), requests_source(points, s)
        found = bands(s.points)
        if found:
            figure.harea(
                y=[b.slower_share for b in found],
                x1=[b.low for b in found],
                x2=[b.high for b in found],
                fill_color=colour,
                fill_alpha=0.16,
            )
        figure.line("x", "share", source=source, line_color=colour, line_dash=dash_of(s), line_width=2)
        drawn.append(figure.scatter("x", "share", source=source, size=5, color=colour, marker=marker_of(s), alpha=0.8))
    time_ticks(figure.xaxis, ends(series))
    hover(figure, drawn, HOVER)
    return Plot(
        name=name,
        title=title,
        caption="Each point is a request; further left is faster, further up is deeper in the tail. Shaded: 95 % "
        "intervals by order statistics. " + thinned(series),
        words=spoken([_quantile_words(row) for row in rows if row.n > row.failed]),
        item=to_item(figure, name),
        legend=tuple(Key(label=s.label, colour=colour_of(s), style=dash_of(s)) for s in series if s.points),
        columns=("arm", "phase", "n", *(f"p{cell.q * 100:g}" for cell in (rows[0].ttft if rows else ()))),
        rows=tuple(
            (
                one_line(row.arm, 40),
                one_line(row.phase, 40),
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
    against = base[0].arm if base else ""
    others = {s.arm for s in series if s.arm_index != reference}
    figure = new_figure(
        f"TTFT in {against} (log scale)",
        f"TTFT in {others.pop() if len(others) == 1 else 'the other arm'}",
        x_axis_type="log",
        y_axis_type="log",
    )
    drawn, legend, rows, words, bounds = [], [], [], [], []
    for s in (s for s in series if s.arm_index != reference):
        found = pairs([b for b in base if b.phase == s.phase], [s])
        if not found:
            continue
        kept = _thin_pairs(found)
        source = requests_source([other for _, other in kept], s)
        source.data["reference"] = [digits(first.ttft_seconds) for first, _ in kept]
        source.data["reference_text"] = [format_seconds(first.ttft_seconds) for first, _ in kept]
        bounds += [value for a, b in kept for value in (a.ttft_seconds, b.ttft_seconds)]
        drawn.append(
            figure.scatter("reference", "x", source=source, size=7, color=colour_of(s), marker=marker_of(s), alpha=0.7)
        )
        legend.append(Key(label=s.label, colour=colour_of(s), style=marker_of(s)))
        ratios = sorted(b.ttft_seconds / a.ttft_seconds for a, b in found)
        faster = sum(ratio < 1 for ratio in ratios)
        middle = f"{ratios[len(ratios) // 2]:.3g}"
        rows.append((s.arm, s.phase, str(len(found)), str(faster), middle, f"{ratios[-1]:.3g}"))
        words.append(f"{s.label}: {faster} of {len(found)} faster than in {against}, middle ratio {middle}")
    if not rows:
        return None
    low, high = min(bounds), max(bounds)
    time_ticks(figure.xaxis, bounds)
    time_ticks(figure.yaxis, bounds)
    figure.line([low, high], [low, high], line_dash="dashed", line_width=1, line_color="#808080")
    hover(figure, drawn, [*HOVER[:2], ("reference", "@reference_text"), *HOVER[2:]])
    return Plot(
        name="paired",
        title="The same request in both arms",
        caption=f"Below the dashed line the request was faster than in {against}. "
        + thinned([s for s in series if s.arm_index != reference]),
        words=spoken(words),
        item=to_item(figure, "paired"),
        legend=tuple(legend),
        columns=("arm", "phase", "pairs", f"faster than in {against}", "middle ratio", "largest ratio"),
        rows=tuple(rows),
    )


def hits_over_time(series: Sequence[Series]) -> Plot | None:
    """Share of the prompt that a cache supplied, in the order of time; ``None`` when no server tells it by request."""
    told = [(s, [p for p in s.points if p.sample.cached_tokens is not None]) for s in series]
    told = [(s, sorted(points, key=lambda p: p.begin_seconds)) for s, points in told if points]
    if not told:
        return None
    from bokeh.models import ColumnDataSource

    figure = new_figure("sent, seconds since the measurement began", "share of prompt tokens", y_range=(-0.04, 1.04))
    drawn, rows, words = [], [], []
    for s, points in told:
        windows = _windows(points)
        rates = [_share(window) for window in windows]
        source = ColumnDataSource(
            data={
                "begin": [digits(sum(p.begin_seconds for p in w) / len(w)) for w in windows],
                "rate": [digits(rate) for rate in rates],
                "label": [s.label] * len(windows),
                "text": [f"{rate:.2f}" for rate in rates],
                "n": [len(w) for w in windows],
            }
        )
        if points[0].blocks == 1:  # a line from block to block would cross the phases in between
            figure.line("begin", "rate", source=source, line_color=colour_of(s), line_dash=dash_of(s), line_width=1.5)
        drawn.append(
            figure.scatter("begin", "rate", source=source, size=6, color=colour_of(s), marker=marker_of(s), alpha=0.8)
        )
        overall, half = _share(points), len(points) // 2 or 1
        first, second = _share(points[:half]), _share(points[half:] or points)
        rows.append((s.arm, s.phase, str(len(points)), f"{overall:.2f}", f"{first:.2f}", f"{second:.2f}"))
        words.append(f"{s.label}: {overall:.2f} over all, {first:.2f} in the first half, {second:.2f} in the second")
    hover(figure, drawn, [("arm, phase", "@label"), ("hit rate", "@text"), ("requests", "@n"), ("at", "@begin s")])
    return Plot(
        name="hits-time",
        title="Hit rate over time",
        caption="Prompt tokens taken from the device's cache or a tier, over all prompt tokens, as the server says for "
        f"each request (it does not tell the two apart there); at most {WINDOWS} points a series, each a run of "
        "requests.",
        words=spoken(words),
        item=to_item(figure, "hits-time"),
        legend=tuple(Key(label=s.label, colour=colour_of(s), style=marker_of(s)) for s, _ in told),
        columns=("arm", "phase", "requests", "hit rate", "first half", "second half"),
        rows=tuple(rows),
    )


def timeline(series: Sequence[Series]) -> Plot:
    """When each request was sent, and how long it waited."""
    figure = new_figure("sent, seconds since the measurement began", "TTFT (log scale)", y_axis_type="log")
    drawn, rows, words = [], [], []
    for s in series:
        points = thin(s.points)
        if not points:
            continue
        source = requests_source(points, s)
        drawn.append(
            figure.scatter("begin", "x", source=source, size=6, color=colour_of(s), marker=marker_of(s), alpha=0.7)
        )
        times = [p.begin_seconds for p in s.points]
        slowest = format_seconds(s.points[-1].ttft_seconds)
        rows.append((s.arm, s.phase, f"{min(times):.2f} s", f"{max(times):.2f} s", slowest))
        words.append(f"{s.label}: sent from {min(times):.2f} s to {max(times):.2f} s, slowest {slowest}")
    time_ticks(figure.yaxis, ends(series))
    hover(figure, drawn, HOVER)
    return Plot(
        name="timeline",
        title="Requests over time",
        caption="Phases follow one another; pauses between them are not drawn. " + thinned(series),
        words=spoken(words),
        item=to_item(figure, "timeline"),
        legend=tuple(Key(label=s.label, colour=colour_of(s), style=marker_of(s)) for s in series if s.points),
        columns=("arm", "phase", "first sent", "last sent", "slowest TTFT"),
        rows=tuple(rows),
    )


def _quantile_words(row: PhaseRow) -> str:
    parts = [f"p{c.q * 100:g} {format_seconds(c.seconds)}" for c in row.ttft if c.enough]
    parts += [f"slowest {format_seconds(c.seconds)}" for c in row.ttft if not c.enough][:1]
    return f"{one_line(row.arm, 40)}, {one_line(row.phase, 40)}: n = {row.n}, {', '.join(parts)}"


def _windows(points: Sequence[Point]) -> list[Sequence[Point]]:
    """Cut the requests into runs of equal length, in the order of time: one each where there are few."""
    size = -(-len(points) // WINDOWS)
    return [points[start : start + size] for start in range(0, len(points), size)]


def _share(points: Sequence[Point]) -> float:
    asked = sum(p.sample.prompt_tokens for p in points)
    return sum(p.sample.cached_tokens or 0 for p in points) / asked if asked else 0.0


def _thin_pairs(found: list[tuple[Point, Point]]) -> list[tuple[Point, Point]]:
    kept = {id(point) for point in thin([other for _, other in found])}
    return [pair for pair in found if id(pair[1]) in kept]
