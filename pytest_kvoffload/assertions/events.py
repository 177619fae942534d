"""Assertions on KV cache events: what an engine says it stored and removed, by medium."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_kvoffload.assertions.evidence import Case, number, open_case
from pytest_kvoffload.errors import UsageError, did_you_mean
from pytest_kvoffload.metrics.kv_events import blocks
from pytest_kvoffload.records import KVEventLog, Measurement

__tracebackhide__ = True  # pytest shows the line of the test, not ours


def assert_blocks_stored(
    measurement: Measurement,
    *,
    medium: str = "CPU",
    at_least: int = 1,
    phase: str | None = None,
    replica: str | None = None,
) -> None:
    """Assert that an engine said that it stored blocks in a medium (``BlockStored`` events over ZMQ).

    Args:
        measurement: what was measured, with ``kv_events = true`` in ``[engine]``.
        medium: ``CPU`` (host tier), ``STORAGE`` (disk and object tiers with ``enable_kv_events``) or ``GPU`` (the
            device); upper and lower case are the same.
        at_least: how many blocks. A block of a tier is one of its chunks.
        phase: one phase, ``None`` for all of them together.
        replica: the engine's data parallel rank, or its host and port behind a router; ``None`` for all together.

    Raises:
        MeterAssertionError: ``violated``; ``metric-absent`` when nothing listened, or when batches were lost and what
            came does not suffice.
        UsageError: a replica that published nothing and is none of those that are known.
    """
    if at_least < 1:
        raise ValueError(f"at_least is a number of blocks of at least 1, got {at_least}")
    names = (phase,) if phase is not None else measurement.phase_names or ("cold",)
    cases = [open_case("assert_blocks_stored", measurement, name) for name in names]
    logs = [_log(case) for case in cases]
    if replica is not None:
        _check_replica(measurement, replica)
    stored = sum(blocks(log, "stored", medium=medium, replica=replica) for log in logs)
    if stored >= at_least:
        return
    lost = sum(log.lost_batches for log in logs)
    where = f"in phase {phase!r}" if phase is not None else "in any phase" if not stored else "in all phases"
    whose = f" on replica {replica}" if replica is not None else ""
    evidence = {
        "threshold": f">= {number(at_least)} blocks in {medium}",
        **_rows(logs),
        "batches": f"{number(sum(log.batches for log in logs))} received, {number(lost)} lost",
    }
    if lost:
        cases[-1].fail(
            "metric-absent",
            f"{number(stored)} blocks were stored in medium {medium}{whose} {where}, asked for are at least "
            f"{number(at_least)}, and {number(lost)} batches of events were lost: it cannot be judged",
            evidence,
            advice=("attach to a replay endpoint (--kv-events-config replay_endpoint), or send less at once",),
        )
    cases[-1].fail(
        "violated",
        f"{number(stored)} blocks were stored in medium {medium}{whose} {where}, asked for are at least "
        f"{number(at_least)}",
        evidence,
        advice=_advice(medium, logs),
    )


def _log(case: Case) -> KVEventLog:
    log = case.phase.kv_events
    if log is None:
        case.fail(
            "metric-absent",
            f"nobody listened to KV cache events in phase {case.name!r}",
            advice=("set kv_events = true in [engine]: the server then publishes them, and the measurement listens",),
        )
    return log


def _check_replica(measurement: Measurement, replica: str) -> None:
    known = [source.replica for source in measurement.server.kv_event_sources]
    if replica not in known:
        raise UsageError(f"unknown replica {replica!r}{did_you_mean(replica, known)}; there are {', '.join(known)}")


def _rows(logs: Iterable[KVEventLog]) -> dict[str, str]:
    """One row for each replica, kind and medium that there was."""
    found: dict[str, list[int]] = {}
    for log in logs:
        for count in log.counts:
            medium = count.medium or "no medium"
            row = found.setdefault(f"{count.kind}, {medium}, replica {count.replica}", [0, 0])
            row[0] += count.blocks
            row[1] += count.events
    return {key: f"{number(row[0])} blocks in {number(row[1])} events" for key, row in sorted(found.items())} or {
        "events": "none at all"
    }


def _advice(medium: str, logs: Iterable[KVEventLog]) -> tuple[str, ...]:
    media = {count.medium.upper() for log in logs for count in log.counts if count.kind == "stored"}
    if medium.upper() == "STORAGE":
        return ("a disk or object tier speaks only with enable_kv_events = true in its entry of secondary_tiers",)
    if medium.upper() not in ("CPU", "GPU"):
        return ("vLLM's media are GPU (the device), CPU (the host tier) and STORAGE (disk and object tiers)",)
    if media == {"GPU"}:
        return (
            "only the device spoke: either the tier stored nothing (assert_tier_exercised tells), or its connector "
            "publishes no events: OffloadingConnector, SimpleCPUOffloadConnector, LMCacheConnectorV1 and Mooncake do",
        )
    return ("did the requests fill whole blocks or chunks, and is prefix caching on?",)
