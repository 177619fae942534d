"""Assertions on KV cache events."""

from __future__ import annotations

import dataclasses

import pytest
from factories import good
from test_assert_common import outcome

from pytest_kvoffload import assert_blocks_stored, measurement_from_json, to_json
from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.records import KVEventCount, KVEventLog, KVEventSource, Measurement


def count(kind: str, medium: str, blocks: int, *, replica: str = "0") -> KVEventCount:
    assert kind in ("stored", "removed", "cleared")
    return KVEventCount(
        replica=replica,
        kind=kind,  # type: ignore[arg-type]
        medium=medium,
        events=max(1, blocks),
        blocks=blocks,
    )


def listened(cold: tuple[KVEventCount, ...], restored: tuple[KVEventCount, ...] = (), *, lost: int = 0) -> Measurement:
    made = good()
    logs = (KVEventLog(counts=cold, batches=12, lost_batches=lost), KVEventLog(counts=restored, batches=3))
    phases = tuple(dataclasses.replace(p, kv_events=log) for p, log in zip(made.phases, logs, strict=True))
    sources = tuple(KVEventSource(replica=rank, endpoint=f"ipc:///x/events-tcp:{rank}") for rank in ("0", "1"))
    return dataclasses.replace(made, phases=phases, server=dataclasses.replace(made.server, kv_event_sources=sources))


STORED = listened(
    (count("stored", "GPU", 192), count("stored", "CPU", 100), count("stored", "CPU", 92, replica="1")),
    (count("stored", "CPU", 8), count("removed", "CPU", 5), count("cleared", "", 0)),
)


def test_blocks_are_summed_over_phases_and_replicas_unless_asked_for() -> None:
    assert_blocks_stored(STORED)
    assert_blocks_stored(STORED, medium="cpu", at_least=200)
    assert_blocks_stored(STORED, medium="CPU", at_least=192, phase="cold")
    assert_blocks_stored(STORED, medium="CPU", at_least=92, phase="cold", replica="1")
    assert outcome(lambda: assert_blocks_stored(STORED, at_least=201)).outcome == "violated"
    error = outcome(lambda: assert_blocks_stored(STORED, at_least=93, phase="cold", replica="1"))
    assert "92 blocks were stored in medium CPU on replica 1 in phase 'cold', asked for are at least 93" in str(error)
    assert error.evidence["stored, GPU, replica 0"] == "192 blocks in 192 events"


def test_a_medium_that_never_spoke_is_named_with_its_switch() -> None:
    text = str(outcome(lambda: assert_blocks_stored(STORED, medium="STORAGE")))
    assert "0 blocks were stored in medium STORAGE in any phase" in text
    assert "enable_kv_events = true in its entry of secondary_tiers" in text
    only_device = listened((count("stored", "GPU", 192),))
    assert "only the device spoke" in str(outcome(lambda: assert_blocks_stored(only_device)))
    assert "vLLM's media are GPU" in str(outcome(lambda: assert_blocks_stored(STORED, medium="DISK")))


def test_without_a_listener_nothing_is_claimed() -> None:
    error = outcome(lambda: assert_blocks_stored(good()))
    assert error.outcome == "metric-absent"
    assert "set kv_events = true in [engine]" in str(error)


def test_lost_batches_forbid_a_failure_but_no_success() -> None:
    lossy = listened((count("stored", "CPU", 10),), lost=3)
    assert_blocks_stored(lossy, at_least=10)
    error = outcome(lambda: assert_blocks_stored(lossy, at_least=11))
    assert error.outcome == "metric-absent"
    assert "3 batches of events were lost: it cannot be judged" in str(error)


def test_mistakes_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        assert_blocks_stored(STORED, at_least=0)
    with pytest.raises(UsageError, match="unknown replica '7'; there are 0, 1"):
        assert_blocks_stored(STORED, replica="7")
    assert outcome(lambda: assert_blocks_stored(STORED, phase="resident")).outcome == "phase-missing"


def test_events_travel_with_the_measurement() -> None:
    again = measurement_from_json(to_json(STORED))
    assert again == STORED
    assert_blocks_stored(again, at_least=200)
