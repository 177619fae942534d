"""The section that pytest prints at the end: one table, and where the evidence lies."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload.output.rows import phase_rows
from pytest_kvoffload.output.table import print_rows
from pytest_kvoffload.records import Measurement

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


def write_pytest_summary(
    reporter: TerminalReporter, measurements: Sequence[Measurement], *, run_dir: Path, unreadable: Sequence[str] = ()
) -> None:
    """Write the section. Nothing here raises: a summary that fails would hide the results of the tests."""
    if not measurements and not unreadable:
        return
    reporter.section("kvoffload")
    if measurements:
        reporter.write(render(measurements, width=reporter._tw.fullwidth))
    for measurement in measurements:
        for difference in measurement.server.differences:
            reporter.write_line(f"{measurement.arm}: {difference}", yellow=True)
        if not measurement.complete:
            reporter.write_line(f"{measurement.arm}: not complete ({'; '.join(measurement.notes)})", yellow=True)
    for problem in unreadable:
        reporter.write_line(problem, yellow=True)
    here = reporter.config.invocation_params.dir
    shown = run_dir.relative_to(here) if run_dir.is_relative_to(here) else run_dir
    reporter.write_line(f"measurements and server logs: {shown}")


def render(measurements: Sequence[Measurement], *, width: int) -> str:
    """Return the table of all measurements as plain text."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    rows = [row for measurement in measurements for row in phase_rows(measurement)]
    print_rows(rows, console)
    return out.getvalue()
