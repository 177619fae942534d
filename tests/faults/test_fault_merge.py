"""``kvoffload chaos --merge``: one table of several runs, nothing hidden."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest
from factories import measurement, phase

from pytest_kvoffload.commands import chaos
from pytest_kvoffload.errors import ExitCode, UsageError
from pytest_kvoffload.records import FaultOutcome, FaultResult, FaultVerdict

MADE = measurement(phase("cold", [0.1]), phase("restored", [0.1]))


def row(
    fault: str,
    outcome: FaultOutcome | None,
    verdict: FaultVerdict = "pass",
    *,
    connector: str = "fs",
    version: str | None = "0.32.0",
) -> FaultResult:
    return FaultResult(
        fault=fault,
        connector=connector,
        kind="tiering",
        outcome=outcome,
        verdict=verdict,
        expected=("served", "degraded"),
        reason=f"what was seen of {fault}",
        vllm_version=version,
        measurement=MADE,
    )


def write(path: Path, *rows: FaultResult) -> str:
    path.mkdir()
    chaos._write_json(path / "chaos.json", list(rows), interrupted=False)
    return str(path)


def merged(*paths: str, more: tuple[str, ...] = ()) -> int:
    parser = argparse.ArgumentParser()
    chaos.build_parser(parser)
    return chaos.run(parser.parse_args([word for path in paths for word in ("--merge", path)] + list(more)))


def table(page: Path) -> list[str]:
    return [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith(("| fs", "| obj", "- "))]


def test_rows_of_several_runs_stand_in_one_table_in_the_order_of_the_faults(tmp_path: Path) -> None:
    one = write(tmp_path / "a", row("worker_killed", "failed_loudly"), row("redis_gone", None, "not-applicable"))
    other = write(tmp_path / "b", row("object_store_down", "served", connector="obj"), row("disk_full", "served"))
    page = tmp_path / "page.md"
    assert merged(one, str(Path(other, "chaos.json")), more=("--markdown", str(page))) == ExitCode.OK
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in table(page) if line.startswith("|")]
    assert cells == [["fs", "`disk_full`"], ["fs", "`worker_killed`"], ["obj", "`object_store_down`"]]
    assert "Observed on vLLM 0.32.0." in page.read_text(encoding="utf-8")


def test_of_a_row_that_was_run_more_than_once_the_worst_counts_and_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        write(tmp_path / "a", row("disk_full", "degraded")),
        write(tmp_path / "b", row("disk_full", "wrong_output", "fail")),
        write(tmp_path / "c", row("disk_full", "degraded")),
        write(tmp_path / "d", row("disk_full", None, "inconclusive")),
    ]
    page, again = tmp_path / "page.md", tmp_path / "e" / "all.json"
    assert merged(*paths, more=("--markdown", str(page), "--json", str(again))) == ExitCode.FAILED
    told = "what was seen of disk_full (of 3 runs: wrong output 1, degraded 2)"
    assert table(page)[-1] == f"- fs, `disk_full`: {told}"
    assert told in capsys.readouterr().out
    assert merged(str(again)) == ExitCode.FAILED


def test_what_was_tried_and_showed_nothing_is_not_hidden_by_what_does_not_apply(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a", row("disk_full", None, "inconclusive")),
        write(tmp_path / "b", row("disk_full", None, "not-applicable")),
    ]
    assert merged(*paths) == ExitCode.INCONCLUSIVE


def test_results_that_cannot_stand_in_one_table_are_refused(tmp_path: Path) -> None:
    old = write(tmp_path / "a", row("disk_full", "served", version="0.27.1"), row("redis_gone", None, version=None))
    new = write(tmp_path / "b", row("disk_full", "served"))
    with pytest.raises(UsageError, match=r"results of vLLM 0\.27\.1 and 0\.32\.0; a table speaks of one"):
        merged(old, new)
    assert merged(old) == ExitCode.OK
    later = write(tmp_path / "c", dataclasses.replace(row("disk_full", "served"), schema_version=99))
    with pytest.raises(UsageError, match="results of schema 99"):
        merged(later)
    (tmp_path / "d.json").write_text('{"results": [{"fault": 1}]}')
    for path, text in ((tmp_path / "none", "cannot be read"), (tmp_path / "d.json", "is not what kvoffload chaos")):
        with pytest.raises(UsageError, match=text):
            merged(str(path))
    for words in (("--fault", "disk_full"), ("--connector", "fs"), ("--expect", "disk_full=hung")):
        with pytest.raises(UsageError, match=f"no {words[0]} beside it"):
            merged(new, more=words)
