"""The gate's arms as the one table of a run: what each measured, and what was said of the candidate."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence

from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.verdict import Verdict
from pytest_kvoffload.output.rows import PhaseRow, arm_rows


def gate_rows(
    arms: Mapping[str, Sequence[Block]], verdict: Verdict, *, phase: str, candidate: str = "candidate"
) -> list[PhaseRow]:
    """Return the rows of all arms, each arm's blocks together; the verdict stands in the row that was judged.

    Args:
        arms: blocks by the name of their arm; an arm without blocks has no rows.
        verdict: of the run.
        phase: the one that was judged.
        candidate: name of the arm that was judged.
    """
    rows = [
        row for name, blocks in arms.items() if blocks for row in arm_rows([b.measurement for b in blocks], arm=name)
    ]
    return [
        dataclasses.replace(row, verdict=verdict.outcome) if (row.arm, row.phase) == (candidate, phase) else row
        for row in rows
    ]


def print_gate_table(arms: Mapping[str, Sequence[Block]], verdict: Verdict, *, phase: str) -> None:
    """Print the table on stdout; nothing where nothing was measured."""
    from rich.console import Console

    from pytest_kvoffload.output.table import print_rows

    rows = gate_rows(arms, verdict, phase=phase)
    if rows:
        print_rows(rows, Console(file=sys.stdout))
