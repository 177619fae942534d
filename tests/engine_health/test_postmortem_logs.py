"""Every class of the post-mortem on a log of its own.

The logs are trimmed from real boots (their header says which); those whose fault needs a GPU are quoted from the
source that emits the line, and their header says that, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_kvoffload.catalog.failures import load_failures
from pytest_kvoffload.engine.postmortem import degraded, diagnose

LOGS = sorted((Path(__file__).parent / "logs").glob("*.log"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLog:
    """A log with what its header says."""

    cls: str
    version: str
    made_by: str
    source: str | None
    exit_code: int | None
    cause: str
    text: str


def read_log(path: Path) -> RecordedLog:
    head, _, text = path.read_text(encoding="utf-8").partition("\n\n")
    fields = dict(line.removeprefix("# ").split(": ", 1) for line in head.splitlines())
    code = fields["exit code"]
    return RecordedLog(
        cls=fields["class"],
        version=fields["version"],
        made_by=fields["made by"],
        source=fields.get("source"),
        exit_code=int(code) if code.lstrip("-").isdigit() else None,
        cause=fields["cause"],
        text=text,
    )


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_the_first_cause_is_found(path: Path) -> None:
    log = read_log(path)
    found = diagnose(log.text, exit_code=log.exit_code)
    assert found.cls == log.cls
    assert found.known
    assert log.cause in found.cause
    assert "(not said)" not in found.cause
    assert found.remedy
    assert found.lines
    assert all(line in log.text for line in found.lines if "***" not in line)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_says_where_it_comes_from(path: Path) -> None:
    log = read_log(path)
    assert log.version
    assert log.made_by.startswith("quoted from the source") == (log.source is not None)


def test_every_class_has_a_log() -> None:
    assert {read_log(path).cls for path in LOGS} == {failure.cls for failure in load_failures().failure}


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_only_the_degraded_logs_are_degraded(path: Path) -> None:
    log = read_log(path)
    found = degraded(log.text)
    assert (found is not None) == (load_failures().by_class(log.cls).kind == "degraded")


def test_the_order_of_the_processes_does_not_matter() -> None:
    """The server's own traceback may reach the file before the worker's: each is read by its process."""
    log = read_log(Path(__file__).parent / "logs" / "shm-too-small.log")
    lines = log.text.splitlines()
    server = [line for line in lines if line.startswith("(APIServer")]
    rest = [line for line in lines if not line.startswith("(APIServer")]
    assert diagnose("\n".join([*server, *rest]), exit_code=1) == diagnose(log.text, exit_code=1)
