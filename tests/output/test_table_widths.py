"""The table of a terminal: nothing is cut at 80 and 160 columns, and each mark is explained."""

from __future__ import annotations

import dataclasses
import io

import pytest
from report_runs import gate_run
from rich.console import Console

from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.verdict import Finding, Verdict
from pytest_kvoffload.output.gate_table import gate_rows
from pytest_kvoffload.output.rows import PhaseRow, QuantileCell, arm_rows, phase_rows, quantiles_text
from pytest_kvoffload.output.table import print_rows


def judged() -> list[PhaseRow]:
    """Rows of a gate's run that failed."""
    measurements = gate_run().measurements
    arms = {
        name: [Block(block=m.workload.seed, boot=0, measurement=m) for m in measurements if m.arm == name]
        for name in ("reference", "candidate")
    }
    verdict = Verdict(
        reference="reference",
        candidate="candidate",
        findings=(Finding(name="ttft_p99", outcome="fail", text="slower"),),
        requests_per_arm=120,
        boots_per_arm=1,
        calibration="none",
    )
    return gate_rows(arms, verdict, phase="restored")


def printed(rows: list[PhaseRow], width: int) -> str:
    """Return what a terminal of that width shows."""
    out = io.StringIO()
    print_rows(rows, Console(file=out, width=width, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 139, 140, 160, 200])
def test_nothing_is_cut(width: int) -> None:
    text = printed(judged(), width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    assert text.count("reference") == 2
    assert text.count("fail") == 1


def test_eighty_columns_carry_every_quantile_and_the_verdict() -> None:
    lines = [" ".join(line.split()) for line in printed(judged(), 80).splitlines()]
    assert lines[0] == "arm phase n dev tier p50/p95/p99 store load same"
    assert "candidate restored 120 0.00 0.97 43.9/48.7/48.8 ms 0 B 120 MiB 120/120" in lines
    assert "candidate, restored: fail" in lines


def test_a_wide_terminal_carries_intervals_and_a_column_for_the_verdict() -> None:
    lines = [" ".join(line.split()) for line in printed(judged(), 160).splitlines()]
    assert lines[0] == "arm phase n device hits tier hits TTFT p50 TTFT p95 TTFT p99 stored loaded same output verdict"
    (row,) = [line for line in lines if line.startswith("candidate restored")]
    assert row.startswith("candidate restored 120 0.00 0.97 43.9 [42.8, 45.1] ms 48.7 [48.6, 48.8] ms")
    assert row.endswith("48.8 ms 0 B 120.0 MiB 120/120 fail")


def test_long_names_cost_the_p95_before_anything_is_cut() -> None:
    rows = [dataclasses.replace(row, arm=f"{row.arm}-improved") for row in judged()]
    text = printed(rows, 80)
    assert "…" not in text
    assert "p50/p99" in text


def test_blocks_are_counted_together_and_each_compared_with_its_own_cold_pass() -> None:
    blocks = [m for m in gate_run(blocks=3, n=10).measurements if m.arm == "candidate"]
    cold, restored = arm_rows(blocks)
    assert (cold.n, restored.n) == (30, 30)
    assert restored.load_bytes == pytest.approx(3 * 10 * 2**20)
    assert restored.external_rate == pytest.approx(phase_rows(blocks[0])[1].external_rate)
    assert (cold.same_output, restored.same_output) == (None, (30, 30))
    # Block 1 answers otherwise than its own cold pass did, though as block 0 might have.
    samples = tuple(
        dataclasses.replace(s, output_token_ids=(s.index + 1, 7, 8, 9)) for s in blocks[1].phases[1].samples
    )
    changed = dataclasses.replace(blocks[1].phases[1], samples=samples)
    blocks[1] = dataclasses.replace(blocks[1], phases=(blocks[1].phases[0], changed))
    assert arm_rows(blocks)[1].same_output == (20, 30)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ((0.0235, 0.0292, 0.0314), "23.5/29.2/31.4 ms"),
        ((0.5, 0.9, 1.31), "0.5/0.9/1.31 s"),
        ((0.1, None, 0.2), "100/-/200 ms"),
        ((None, None, None), "-"),
    ],
)
def test_quantiles_share_a_unit(seconds: tuple[float | None, ...], text: str) -> None:
    assert quantiles_text([QuantileCell(q=0.5, seconds=value) for value in seconds]) == text


def test_a_quantile_that_n_cannot_carry_has_a_star() -> None:
    cells = [QuantileCell(q=0.5, seconds=0.1), QuantileCell(q=0.99, seconds=0.2, enough=False)]
    assert quantiles_text(cells) == "100/200* ms"
