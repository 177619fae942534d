"""Outcome and verdict of a scenario: from measurements made by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from factories import measurement, phase

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.faults.catalog import FAULTS, Fault, find_faults
from pytest_kvoffload.faults.judge import Evidence, judge
from pytest_kvoffload.output.fault_table import BEGIN, END, brought_up_to_date, markdown
from pytest_kvoffload.records import FaultResult, Measurement, PhaseResult

(DOWN,) = find_faults(("object_store_down",))
(CORRUPT,) = find_faults(("disk_files_corrupted",))
(KILLED,) = find_faults(("worker_killed",))
(EXHAUSTED,) = find_faults(("tier_exhausted",))
(DELETED,) = find_faults(("disk_files_deleted",))


def part(
    name: str, cached: int, *, error: str | None = None, failed: Sequence[int] = (), wrong: bool = False
) -> PhaseResult:
    made = phase(name, [0.1] * 4, error=error, failed=failed, outputs=[(9, 9)] * 4 if wrong else None)
    samples = tuple(dataclasses.replace(sample, cached_tokens=cached) for sample in made.samples)
    return dataclasses.replace(made, samples=samples)


def run(*phases: PhaseResult) -> Measurement:
    return measurement(part("cold", 0), *phases, mode="fault")


def verdict(fault: Fault, made: Measurement | None, **evidence: object) -> FaultResult:
    return judge(fault, "fs", "tiering", Evidence(measurement=made, **evidence))  # type: ignore[arg-type]


def test_hits_all_the_way_are_served() -> None:
    found = verdict(DOWN, run(part("restored", 160), part("fault", 160), part("recovered", 160)))
    assert (found.outcome, found.verdict, found.recovered) == ("served", "pass", True)
    assert found.hit_rate == found.hit_rate_before == pytest.approx(160 / 165)
    assert (found.requests, found.failed_requests) == (4, 0)


def test_answers_without_hits_are_degraded() -> None:
    found = verdict(DOWN, run(part("restored", 160), part("fault", 0), part("recovered", 160)))
    assert (found.outcome, found.verdict) == ("degraded", "pass")
    assert "by recomputing (hit rate 0.00)" in found.reason


def test_hits_that_do_not_come_back_fail_unless_the_fault_took_the_content() -> None:
    made = run(part("restored", 160), part("fault", 0), part("recovered", 0))
    found = verdict(DOWN, made)
    assert (found.verdict, found.recovered) == ("fail", False)
    assert "did not recover when the fault was over" in found.reason
    assert verdict(DELETED, made).verdict == "pass"


def test_failed_requests_are_loud_and_not_acceptable_for_a_cache() -> None:
    broken = part("fault", 160, error="HTTP 500: EngineDeadError", failed=(2,))
    found = verdict(DOWN, run(part("restored", 160), broken, part("recovered", 160)))
    assert (found.outcome, found.verdict) == ("failed_loudly", "fail")
    assert found.reason == "1 of 4 requests failed: HTTP 500: EngineDeadError; acceptable is served or degraded"


def test_a_request_without_an_end_hangs_whatever_else_failed() -> None:
    broken = part("fault", 160, error="no complete answer within 20 s", failed=(0, 1))
    found = verdict(DOWN, run(part("restored", 160), broken))
    assert (found.outcome, found.verdict) == ("hung", "fail")
    assert "2 of 4 requests had no complete answer within 20 s" in found.reason
    refused = part("fault", 160, error="connection refused", failed=(0,)).samples[0]
    broken = dataclasses.replace(broken, samples=(refused, *broken.samples[1:]))
    found = verdict(DOWN, run(part("restored", 160), broken))
    assert "1 of 4 requests had no complete answer within 20 s" in found.reason


def test_wrong_tokens_are_seen_in_any_phase_and_are_what_corruption_must_show() -> None:
    made = run(part("restored", 160), part("fault", 160, wrong=True), part("recovered", 160))
    found = verdict(CORRUPT, made)
    assert (found.outcome, found.verdict) == ("wrong_output", "pass")
    assert found.reason == "session 0 was answered with other tokens in phase 'fault' than in 'cold'"
    assert verdict(DOWN, made).verdict == "fail"


def test_corruption_that_nobody_sees_does_not_pass() -> None:
    found = verdict(CORRUPT, run(part("restored", 160), part("fault", 160), part("recovered", 160)))
    assert (found.outcome, found.verdict) == ("served", "fail")


def test_a_tier_that_served_nothing_before_proves_nothing() -> None:
    found = verdict(DOWN, run(part("restored", 0), part("fault", 0), part("recovered", 0)))
    assert (found.outcome, found.verdict) == ("degraded", "inconclusive")
    assert "served nothing before the fault began" in found.reason


def test_a_fault_that_nothing_ran_into_proves_nothing() -> None:
    made = run(part("restored", 160), part("fault", 160), part("recovered", 160))
    assert verdict(DOWN, made, felt=False).verdict == "inconclusive"
    assert verdict(DOWN, made, felt=True).verdict == "pass"


def test_a_death_is_loud_and_named() -> None:
    made = dataclasses.replace(run(part("restored", 160), part("fault", 160, error="x", failed=(1,))), complete=False)
    found = verdict(KILLED, made, death="the server died after it was ready (killed by SIGKILL): EngineDeadError")
    assert (found.outcome, found.verdict) == ("failed_loudly", "pass")
    assert "EngineDeadError" in found.reason
    assert verdict(DOWN, made, death="the server died").verdict == "fail"


def test_a_boot_that_fails_is_loud_and_one_without_an_end_hangs() -> None:
    assert verdict(EXHAUSTED, None, boot_failure="ValueError: x").outcome == "failed_loudly"
    assert verdict(EXHAUSTED, None, hung="not ready after 240 s").outcome == "hung"
    found = verdict(EXHAUSTED, measurement(part("cold", 0), part("restored", 0)))
    assert (found.outcome, found.verdict, found.recovered) == ("degraded", "pass", None)


def test_every_fault_has_a_name_of_its_own_and_an_acceptable_outcome() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.expected
        assert "hung" not in fault.expected
    with pytest.raises(UsageError, match="did you mean 'disk_full'"):
        find_faults(("disk_ful",))


def test_the_table_replaces_only_what_is_between_its_marks() -> None:
    result = verdict(DOWN, run(part("restored", 160), part("fault", 0), part("recovered", 160)))
    table = markdown([result], summaries={DOWN.name: DOWN.summary}, usual={DOWN.name: DOWN.expected})
    assert "| fs | `object_store_down` | connections to the object store are refused | degraded | 4/4 |" in table
    page = f"# Page\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    once = brought_up_to_date(page, table)
    assert once.startswith("# Page\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert brought_up_to_date(once, table) == once


def test_an_outcome_that_was_expected_by_command_is_marked_all_the_same() -> None:
    known = dataclasses.replace(DOWN, expected=("hung",))
    result = verdict(known, run(part("restored", 160)), hung="the requests did not come to an end within 60 s")
    assert result.verdict == "pass"
    table = markdown([result], summaries={}, usual={DOWN.name: DOWN.expected})
    assert "| hung (**not**) |" in table
    assert "- fs, `object_store_down`: the requests did not come to an end within 60 s" in table


def test_a_page_names_no_directory_of_the_machine() -> None:
    why = "boot failed (said by lmcache-server, /home/me/run/servers/a-1/lmcache-server-1.log; see http://h:1/a/b.log)"
    result = verdict(EXHAUSTED, None, hung=why)
    table = markdown([result], summaries={}, usual={})
    assert "(said by lmcache-server, lmcache-server-1.log; see http://h:1/a/b.log)" in table
