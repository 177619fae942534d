"""The report of a pytest run, written while pytest prints its summary."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.output.report.document import Finding, RunDocument, read_documents
from pytest_kvoffload.output.report.page import render_page

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

__all__ = ["write_pytest_report"]


def write_pytest_report(
    reporter: TerminalReporter, *, run_dir: Path | None, target: Path, arguments: tuple[str, ...]
) -> None:
    """Write the report and say where it lies; nothing here raises, for the results of the tests must be seen.

    Args:
        reporter: of pytest; its results are the verdict.
        run_dir: directory of the run; ``None`` when no server was needed.
        target: the file to write.
        arguments: of pytest, for the command that repeats the run.
    """
    if run_dir is None:
        reporter.write_line(f"kvoffload: {target} was not written: no test needed a server", yellow=True)
        return
    try:
        document = _judged(reporter, read_documents([run_dir]))
        page = render_page(dataclasses.replace(document, command=shlex.join(["pytest", *arguments])))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(page)
    except (UsageError, OSError) as error:
        reporter.write_line(f"kvoffload: {target} was not written: {error}", red=True)
    except Exception as fault:  # whatever it is: pytest would print a traceback in place of its summary
        reporter.write_line(f"kvoffload: {target} was not written ({type(fault).__name__}: {fault})", red=True)
    else:
        reporter.write_line(f"report: {target}")


def _judged(reporter: TerminalReporter, document: RunDocument) -> RunDocument:
    """Add what the tests said: failed if one failed, passed if some passed, else nothing."""
    found, counts = [], []
    for word in ("failed", "error"):
        for report in reporter.getreports(word):
            text = getattr(report, "longreprtext", "") or str(report.longrepr or "")
            crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
            found.append(Finding(name=report.nodeid, outcome="fail", text=crash.message if crash else text))
    for word in ("passed", "failed", "error", "skipped"):
        if number := len(reporter.getreports(word)):
            counts.append(f"{number} {word}")
    outcome = "fail" if found else "pass" if reporter.getreports("passed") else "inconclusive"
    return dataclasses.replace(
        document, outcome=outcome, verdict="Tests: " + (", ".join(counts) or "none"), findings=tuple(found)
    )
