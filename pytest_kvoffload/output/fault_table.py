"""The fault table: one row a fault and connector, on a terminal and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_kvoffload.output.rows import format_rate, format_seconds
from pytest_kvoffload.records import FaultOutcome, FaultResult

if TYPE_CHECKING:
    from rich.console import Console

WORDS: dict[FaultOutcome, str] = {
    "served": "served",
    "degraded": "degraded",
    "failed_loudly": "failed loudly",
    "hung": "hung",
    "wrong_output": "wrong output",
}
NARROW = 120
"""Below this many columns some go, so that nothing is cut."""
BEGIN, END = "<!-- fault table: begin -->", "<!-- fault table: end -->"
_PATH = re.compile(r"(?<![\w:/])/(?:[^\s/;,:()']+/)+(?=[^\s/;,:()']+)")
"""Directories of the machine that ran it; a page names the file alone."""
_STYLES = {"pass": None, "fail": "red", "inconclusive": "yellow", "not-applicable": "dim"}


def print_faults(results: Sequence[FaultResult], console: Console) -> None:
    """Print the table, then a sentence on each result that is no pass, and what does not apply."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1),
        collapse_padding=True,
        header_style="bold",
    )
    wide = console.width >= NARROW
    shown = ("connector", "fault", "outcome", "ok", "hits", "TTFT max", "recovered", "verdict")
    dropped = () if wide else ("ok", "TTFT max", "recovered")
    for title in shown:
        if title not in dropped:
            table.add_column(title, justify="right" if title in ("ok", "hits", "TTFT max") else "left", no_wrap=True)
    seen = [result for result in results if result.verdict != "not-applicable"]
    for result in seen:
        cells = {
            "connector": result.connector,
            "fault": result.fault,
            "outcome": WORDS[result.outcome] if result.outcome else "-",
            "ok": _answered(result),
            "hits": _change(format_rate(result.hit_rate_before), format_rate(result.hit_rate)),
            "TTFT max": _change(_time(result.ttft_before_seconds), _time(result.ttft_max_seconds)),
            "recovered": _yes_no(result.recovered),
            "verdict": result.verdict,
        }
        table.add_row(*(text for title, text in cells.items() if title not in dropped), style=_STYLES[result.verdict])
    if seen:
        console.print(table)
    for result in seen:
        if result.verdict != "pass":
            line = f"{result.connector}, {result.fault}: {result.verdict}: {result.reason}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    left_out = [result for result in results if result.verdict == "not-applicable"]
    for connector in dict.fromkeys(result.connector for result in left_out):
        for reason, names in _by_reason(r for r in left_out if r.connector == connector):
            line = f"{connector}: does not apply: {', '.join(names)} ({reason})"
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def markdown(
    results: Sequence[FaultResult],
    *,
    summaries: Mapping[str, str],
    usual: Mapping[str, tuple[FaultOutcome, ...]],
) -> str:
    """Return the table as Markdown between two marks, so that a page can be brought up to date by a command.

    Args:
        results: in the order of the rows.
        summaries: what each fault does, by name.
        usual: what is acceptable for each. A worse outcome is marked also where the run was told to expect it.
    """
    versions = sorted({result.vllm_version for result in results if result.vllm_version})
    lines = [BEGIN, "", f"Observed on vLLM {', '.join(versions) or '(not told)'}.", ""]
    lines += [
        "| connector | fault | what happens | outcome | answered | hit rate | slowest first token | recovered |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        if result.verdict == "not-applicable":
            continue
        cells = [
            result.connector,
            f"`{result.fault}`",
            summaries.get(result.fault, ""),
            (WORDS[result.outcome] if result.outcome else "-") + _mark(result, usual),
            _answered(result),
            _change(format_rate(result.hit_rate_before), format_rate(result.hit_rate)),
            _change(_time(result.ttft_before_seconds), _time(result.ttft_max_seconds)),
            _yes_no(result.recovered),
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    remarks = [
        r for r in results if r.verdict != "not-applicable" and (_mark(r, usual) or r.outcome == "failed_loudly")
    ]
    if remarks:
        lines += [
            "",
            "What was seen where requests were not simply answered (**not** marks what is not acceptable):",
            "",
        ]
        lines += [f"- {r.connector}, `{r.fault}`: {_PATH.sub('', r.reason)}" for r in remarks]
    return "\n".join([*lines, "", END, ""])


def brought_up_to_date(page: str, table: str) -> str:
    """Return a page with the table between the marks replaced; the table alone where the page has no marks."""
    if BEGIN not in page or END not in page:
        return table
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2].removeprefix("\n")
    return before + table + after


def _mark(result: FaultResult, usual: Mapping[str, tuple[FaultOutcome, ...]]) -> str:
    if result.verdict == "inconclusive":
        return " (inconclusive)"
    known = result.outcome is None or result.outcome in usual.get(result.fault, result.expected)
    return "" if known and result.verdict != "fail" else " (**not**)"


def _answered(result: FaultResult) -> str:
    if result.requests is None or result.failed_requests is None:
        return "-"
    return f"{result.requests - result.failed_requests}/{result.requests}"


def _change(before: str, after: str) -> str:
    return after if before == "-" else f"{before} -> {after}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _yes_no(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


def _by_reason(results: Iterable[FaultResult]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for result in results:
        found.setdefault(result.reason, []).append(result.fault)
    return list(found.items())
