"""What all plots of the report share: how a figure looks, what stands beside it, what a pointer shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_kvoffload.output.report.series import BODY_POINTS, TAIL_POINTS, Point, Series
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.output.rows import format_seconds

COLOURS = ("#d4661a", "#2f7fc1", "#1a9a72", "#b65b9f", "#8f7d12", "#6f7f8a")
"""At least 3 to 1 against both backgrounds, told apart by the common kinds of colour blindness."""
DASHES = ("solid", "dashed", "dotted", "dotdash")
MARKERS = ("circle", "square", "triangle", "diamond")
SPOKEN = 500
"""Characters that the words of a plot have at most; the table has everything."""
HOVER = [
    ("arm, phase", "@label"),
    ("TTFT", "@ttft"),
    ("session", "@session, turn @turn"),
    ("prefix", "@prefix tokens"),
    ("cached", "@cached"),
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
    """How to read it."""
    words: str
    """What it shows, with its main numbers: the text alternative."""
    item: Mapping[str, Any]
    legend: tuple[Key, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """All numbers that the figure shows."""


def new_figure(x_label: str, y_label: str, **how: Any) -> Any:
    """Return an empty figure in the page's style; its colours are painted by the page, which knows light and dark."""
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


def bars(names: list[str], label: str, **how: Any) -> Any:
    """Return an empty figure with one horizontal band a name, the first at the top."""
    made = new_figure(label, "", y_range=list(reversed(names)), **how)
    made.height = 110 + 34 * len(names)
    made.ygrid.grid_line_color = None
    if "x_range" not in how and "x_axis_type" not in how:
        made.x_range.start = 0
    return made


def time_ticks(axis: Any, times: Sequence[float]) -> None:
    """Put ticks at round times and label them with their unit; a log axis of bokeh labels powers of ten only."""
    low, high = min(times), max(times)
    span = high / low
    steps = (1, 1.5, 2, 3, 4, 5, 7) if span < 8 else (1, 2, 5) if span < 100 else (1, 3) if span < 1000 else (1,)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    axis.ticker = ticks
    axis.major_label_overrides = {tick: format_seconds(tick) for tick in ticks}


def ends(series: Iterable[Series]) -> list[float]:
    """Return the fastest and the slowest TTFT of each series. Seconds."""
    return [s.points[i].ttft_seconds for s in series if s.points for i in (0, -1)]


def hover(figure: Any, renderers: list[Any], tooltips: list[tuple[str, str]]) -> None:
    """Show these lines where a pointer rests on one of the renderers."""
    from bokeh.models import HoverTool

    if renderers:
        figure.add_tools(HoverTool(renderers=renderers, tooltips=tooltips, visible=False))


def requests_source(points: Sequence[Point], series: Series) -> Any:
    """Return the columns of some requests: where they stand, and what a pointer shows of them."""
    from bokeh.models import ColumnDataSource

    return ColumnDataSource(
        data={
            "x": [digits(p.ttft_seconds) for p in points],
            "share": [digits(p.slower_share) for p in points],
            "begin": [digits(p.begin_seconds) for p in points],
            "label": [series.label] * len(points),
            "ttft": [format_seconds(p.ttft_seconds) for p in points],
            "session": [_session(p) for p in points],
            "turn": [p.sample.turn for p in points],
            "prefix": [p.sample.prefix_tokens for p in points],
            "cached": [cached_text(p) for p in points],
            "sent": [f"{p.sample.sent_at_seconds:.2f}" for p in points],
        }
    )


def cached_text(point: Point) -> str:
    """Say how many prompt tokens the server took from a cache."""
    cached = point.sample.cached_tokens
    return "not told" if cached is None else f"{cached} tokens"


def to_item(figure: Any, name: str) -> Mapping[str, Any]:
    """Return the figure as the JSON that bokeh's script draws into the element ``plot-NAME``."""
    from bokeh.core.types import ID
    from bokeh.embed import json_item

    return dict(json_item(figure, target=ID(f"plot-{name}")))


def thinned(series: Sequence[Series]) -> str:
    """Say which requests are drawn."""
    if all(len(s.points) <= BODY_POINTS + TAIL_POINTS for s in series):
        return "Every request is drawn."
    return (
        f"Of series with more than {BODY_POINTS + TAIL_POINTS} requests the slowest {TAIL_POINTS} are all drawn and "
        f"{BODY_POINTS} of the others, evenly by rank; tables and intervals rest on all of them."
    )


def spoken(facts: Sequence[str]) -> str:
    """Return the facts as one sentence, the first ones only where there are many."""
    count = len(facts)
    while count > 1 and len("; ".join(facts[:count])) > SPOKEN:
        count -= 1
    left = len(facts) - count
    return "; ".join(facts[:count]) + (f"; {left} more in the table." if left else ".")


def band_names(pairs: Iterable[tuple[str, ...]], *, limit: int = 16) -> list[str]:
    """Return a short, distinct name of each band, of at most ``limit`` characters a word."""
    names: list[str] = []
    for words in pairs:
        base = " ".join(one_line(word, limit) for word in words)
        name, count = base, 1
        while name in names:
            count += 1
            name = f"{base} #{count}"
        names.append(name)
    return names


def colour_of(series: Series) -> str:
    """The colour of the series' arm."""
    return COLOURS[series.arm_index % len(COLOURS)]


def dash_of(series: Series) -> str:
    """The line of the series' phase."""
    return DASHES[series.phase_index % len(DASHES)]


def marker_of(series: Series) -> str:
    """The marker of the series' phase."""
    return MARKERS[series.phase_index % len(MARKERS)]


def digits(value: float) -> float:
    """Five digits are enough to draw."""
    return float(f"{value:.5g}")


def _session(point: Point) -> str:
    session = str(point.sample.session)
    return f"{session} of block {point.block}" if point.blocks > 1 else session
