"""The plot of what the gate judged: each tail's ratio with its interval, against what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kvoffload.output.report.document import Finding, TailNumbers
from pytest_kvoffload.output.report.figures import (
    COLOURS,
    Key,
    Plot,
    band_names,
    bars,
    digits,
    hover,
    spoken,
    to_item,
)
from pytest_kvoffload.output.report.tables import judged


def ratios(findings: Sequence[Finding]) -> Plot | None:
    """Candidate over reference for every tail that was compared; ``None`` where none was."""
    found = [(finding, finding.tail) for finding in findings if finding.tail is not None]
    table = judged(findings)
    if not found or table is None:
        return None
    from bokeh.models import ColumnDataSource

    names = band_names(((finding.name,) for finding, _ in found), limit=28)
    tails = [tail for _, tail in found]
    known = [value for tail in tails for value in (tail.ratio, tail.low, tail.high, 1.0, 1 + tail.margin) if value]
    start, end = min(known) / 1.15, max(known) * 1.15
    words = [f"{name}: {_words(finding, tail)}" for name, (finding, tail) in zip(names, found, strict=True)]
    figure = bars(names, "candidate over reference", x_range=(start, end))
    source = ColumnDataSource(
        data={
            "name": names,
            # An interval without a bound runs out of the picture.
            "low": [digits(start if tail.low is None else tail.low) for tail in tails],
            "high": [digits(end if tail.high is None else tail.high) for tail in tails],
            "text": words,
        }
    )
    interval = figure.hbar(y="name", left="low", right="high", height=0.25, source=source, color=COLOURS[1], alpha=0.45)
    points = [(name, tail) for name, tail in zip(names, tails, strict=True) if tail.ratio is not None]
    source = ColumnDataSource(
        data={
            "name": [name for name, _ in points],
            "ratio": [digits(tail.ratio or 0.0) for _, tail in points],
            "text": [text for text, tail in zip(words, tails, strict=True) if tail.ratio is not None],
        }
    )
    dot = figure.scatter("ratio", "name", source=source, size=10, marker="diamond", color=COLOURS[1])
    source = ColumnDataSource(data={"name": names, "allowed": [digits(1 + tail.margin) for tail in tails]})
    figure.scatter(
        "allowed", "name", source=source, size=26, marker="dash", angle=1.5708, line_width=3, color=COLOURS[0]
    )
    hover(figure, [interval, dot], [("", "@text")])
    return Plot(
        name="ratios",
        title="The tails against what is allowed",
        caption="Left of the mark is allowed. 1 is as fast as the reference; the bar is the interval of the ratio.",
        words=spoken(words),
        item=to_item(figure, "ratios"),
        legend=(
            Key(label="ratio and its interval", colour=COLOURS[1], style="diamond"),
            Key(label="allowed at most", colour=COLOURS[0], style="solid"),
        ),
        columns=table.columns,
        rows=table.rows,
    )


def _words(finding: Finding, tail: TailNumbers) -> str:
    ratio = "no bound" if tail.ratio is None else f"{tail.ratio:.3f}"
    low, high = ("no bound" if value is None else f"{value:.3f}" for value in (tail.low, tail.high))
    return f"ratio {ratio} [{low}, {high}], allowed {1 + tail.margin:.3f}, {finding.outcome}"
