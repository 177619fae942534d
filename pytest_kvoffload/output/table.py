"""The one table of a run, for a terminal of any width; drawn by rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_kvoffload.output.rows import PhaseRow, format_bytes, format_rate, quantile_text, quantiles_text, tier_hits

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NARROW = 140
"""Below this many columns the intervals and the long headings go and the quantiles share a column: nothing is cut."""


def print_rows(rows: Sequence[PhaseRow], console: Console) -> None:
    """Print the table and the footnotes that its marks need."""
    console.print(build_table(rows, width=console.width))
    for note in footnotes(rows, width=console.width):
        console.print(note, highlight=False, markup=False)


def build_table(rows: Iterable[PhaseRow], *, width: int) -> Table:
    """Return the table; one row a phase, arms told apart by a rule: the roomiest layout that fits the width."""
    rows = list(rows)
    for layout in _layouts(width):
        table = _lay_out(rows, layout)
        if _width(table) <= width:
            break
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    wide: bool
    gap: int
    """Blanks between columns: 1, 2 or 3."""
    without: tuple[float, ...] = ()
    """Quantiles that are left out."""


def _layouts(width: int) -> tuple[_Layout, ...]:
    if width >= NARROW:
        return tuple(_Layout(wide=True, gap=gap) for gap in (3, 2, 1))
    return (*(_Layout(wide=False, gap=gap) for gap in (2, 1)), _Layout(wide=False, gap=1, without=(0.95,)))


def _lay_out(rows: Sequence[PhaseRow], layout: _Layout) -> Table:
    from rich import box
    from rich.table import Table

    wide = layout.wide
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, int(layout.gap > 1)),
        collapse_padding=layout.gap < 3,
        header_style="bold",
    )
    cells = {id(row): [cell for cell in row.ttft if cell.q not in layout.without] for row in rows}
    shown = [f"p{cell.q * 100:g}" for cell in cells[id(rows[0])]] if rows else []
    judged = wide and any(row.verdict for row in rows)
    hits, moved = (("device hits", "tier hits"), ("stored", "loaded")) if wide else (("dev", "tier"), ("store", "load"))
    quantiles = [f"TTFT {name}" for name in shown] if wide else ["/".join(shown)] if shown else []
    # Where nothing fits, words are folded (names, "interrupted", "3 failed", the split of a tier), never numbers cut.
    for title in ("arm", "phase"):
        table.add_column(title, overflow="fold")
    for title in ("n", *hits, *quantiles, *moved, "same output" if wide else "same"):
        table.add_column(title, justify="right", no_wrap=title not in ("n", hits[1]), overflow="fold")
    if judged:
        table.add_column("verdict", no_wrap=True)
    for i, row in enumerate(rows):
        last_of_arm = i + 1 < len(rows) and rows[i + 1].arm != row.arm
        times = cells[id(row)]
        table.add_row(
            row.arm,
            row.phase if row.complete else f"{row.phase} (interrupted)",
            f"{row.n}" if not row.failed else f"{row.n} ({row.failed} failed)",
            format_rate(row.device_rate),
            tier_hits(row),
            *([quantile_text(cell, interval=True) for cell in times] if wide else [quantiles_text(times)]),
            format_bytes(row.store_bytes, decimals=int(wide)),
            format_bytes(row.load_bytes, decimals=int(wide)),
            _same(row),
            *((row.verdict,) if judged else ()),
            end_section=last_of_arm,
            style="red" if row.failed else None,
        )
    return table


def _width(table: Table) -> int:
    from rich.console import Console

    return Console(width=10_000, color_system=None).measure(table).maximum


def footnotes(rows: Iterable[PhaseRow], *, width: int) -> list[str]:
    """Explain the marks that the table carries."""
    rows = list(rows)
    notes = []
    if width < NARROW:
        notes.append("p50 to p99: TTFT; dev, tier: hits of device and tier over prompt tokens")
        notes += [f"{row.arm}, {row.phase}: {row.verdict}" for row in rows if row.verdict]
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
