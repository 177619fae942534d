"""The one table of a run, for a terminal of any width; drawn by rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_kvoffload.output.rows import PhaseRow, format_bytes, format_rate, quantile_text, tier_hits

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NARROW = 140
"""Below this many columns the intervals, the p95 and the long headings go, so that nothing is cut."""


def print_rows(rows: Sequence[PhaseRow], console: Console) -> None:
    """Print the table and the footnotes that its marks need."""
    console.print(build_table(rows, width=console.width))
    for note in footnotes(rows, width=console.width):
        console.print(note, highlight=False, markup=False)


def build_table(rows: Iterable[PhaseRow], *, width: int) -> Table:
    """Return the table; one row a phase, arms told apart by a rule."""
    from rich import box
    from rich.table import Table

    rows = list(rows)
    wide = width >= NARROW
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
        collapse_padding=not wide,
        header_style="bold",
    )
    shown = [cell.q for cell in rows[0].ttft if wide or cell.q != 0.95] if rows else []
    hits, moved = (("device hits", "tier hits"), ("stored", "loaded")) if wide else (("dev", "tier"), ("store", "load"))
    quantiles = [f"TTFT p{q * 100:g}" if wide else f"p{q * 100:g}" for q in shown]
    for title in ("arm", "phase"):
        table.add_column(title, no_wrap=True)
    for title in ("n", *hits, *quantiles, *moved, "same output" if wide else "same"):
        table.add_column(title, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        last_of_arm = i + 1 < len(rows) and rows[i + 1].arm != row.arm
        table.add_row(
            row.arm,
            row.phase if row.complete else f"{row.phase} (interrupted)",
            f"{row.n}" if not row.failed else f"{row.n} ({row.failed} failed)",
            format_rate(row.device_rate),
            tier_hits(row),
            *(quantile_text(cell, interval=wide) for cell in row.ttft if cell.q in shown),
            format_bytes(row.store_bytes, decimals=int(wide)),
            format_bytes(row.load_bytes, decimals=int(wide)),
            _same(row),
            end_section=last_of_arm,
            style="red" if row.failed else None,
        )
    return table


def footnotes(rows: Iterable[PhaseRow], *, width: int) -> list[str]:
    """Explain the marks that the table carries."""
    rows = list(rows)
    notes = []
    if width < NARROW:
        notes.append("p50, p99: TTFT; dev, tier: hits of device and tier over prompt tokens")
    if any(not cell.enough and cell.seconds is not None for row in rows for cell in row.ttft):
        notes.append("* too few requests for this quantile: the slowest request instead")
    if width >= NARROW and any(cell.low is not None for row in rows for cell in row.ttft):
        notes.append("[a, b] 95 % interval by order statistics, no distribution assumed")
    if any(value is None for row in rows for value in (row.external_rate, row.store_bytes)):
        notes.append("- the server does not expose it")
    return notes


def _same(row: PhaseRow) -> str:
    if row.same_output is None:
        return ""
    equal, compared = row.same_output
    return f"{equal}/{compared}"
