"""``kvoffload report``: one HTML file of what runs have measured."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_kvoffload.errors import ExitCode, UsageError


def build_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="measurement JSON, demo.json, verdict.json, or the directory of a run (several are put side by side)",
    )
    parser.add_argument("--output", default="report.html", metavar="FILE", help="the file to write (report.html)")


def run(args: argparse.Namespace) -> int:
    """Read the runs and write the page."""
    from pytest_kvoffload.output.report import read_documents, render_page

    page = render_page(read_documents([Path(run) for run in args.runs]))
    target = Path(args.output)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(page)
    except OSError as error:
        raise UsageError(f"--output {target}: cannot be written: {error.strerror or error}") from error
    print(f"{target} ({len(page) / 1e6:.1f} MB)")
    return ExitCode.OK
