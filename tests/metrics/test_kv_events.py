"""Listening to KV cache events, against a publisher that speaks as vLLM's does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.kv_publisher import CLEARED, Publisher, batch, removed, stored

import pytest_kvoffload.metrics.kv_events as kv_events
from pytest_kvoffload.errors import EngineError
from pytest_kvoffload.metrics.kv_events import EventCounter, EventListener, blocks, listen
from pytest_kvoffload.records import KVEventLog, KVEventSource


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher(tmp_path)
    yield made
    made.close()


@pytest.fixture
def listener(publisher: Publisher) -> Iterator[EventListener]:
    made = EventListener([publisher.source])
    yield made
    made.close()


def drained_until(listener: EventListener, batches: int) -> None:
    """Drain until that many batches have arrived: a socket delivers when it delivers."""
    deadline = time.monotonic() + 30
    while sum(counter.batches for counter, _ in listener._streams) < batches:
        assert time.monotonic() < deadline, "the batch never arrived"
        listener.drain()


def found(log: KVEventLog) -> dict[tuple[str, str], tuple[int, int]]:
    return {(c.kind, c.medium): (c.events, c.blocks) for c in log.counts}


def test_events_are_counted_by_kind_and_medium(publisher: Publisher, listener: EventListener) -> None:
    listener.begin()
    publisher.publish(stored("GPU", 16), stored("GPU", 1))
    publisher.publish(stored("CPU", 1), stored("CPU", 1, self_describing=True), removed("CPU", 3), CLEARED)
    log = listener.finish()
    assert found(log) == {
        ("stored", "GPU"): (2, 17),
        ("stored", "CPU"): (2, 2),
        ("removed", "CPU"): (1, 3),
        ("cleared", ""): (1, 0),
    }
    assert (log.batches, log.lost_batches, log.notes) == (2, 0, ())
    assert blocks(log, "stored", medium="cpu") == 2
    assert blocks(log, "stored", medium="cpu", replica="1") == 0


def test_a_phase_has_only_its_own_events(publisher: Publisher, listener: EventListener) -> None:
    publisher.publish(stored("GPU", 5))
    listener.begin()
    publisher.publish(stored("GPU", 7))
    assert found(listener.finish()) == {("stored", "GPU"): (1, 7)}
    assert found(listener.finish()) == {}
    publisher.publish(stored("GPU", 1))
    listener.begin()
    assert listener.finish() == KVEventLog()


def test_what_was_published_before_anybody_listened_does_not_count(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(stored("GPU", 5), send=False)
    listener = EventListener([publisher.source])
    try:
        listener.begin()
        publisher.publish(stored("GPU", 1))
        log = listener.finish()
        assert (found(log), log.lost_batches) == ({("stored", "GPU"): (1, 1)}, 0)
    finally:
        listener.close()
        publisher.close()


def test_a_gap_is_asked_for_again(publisher: Publisher, listener: EventListener) -> None:
    listener.begin()
    publisher.publish(stored("CPU", 1))
    publisher.publish(stored("CPU", 2), send=False)
    publisher.publish(stored("CPU", 4))
    publisher.publish(stored("CPU", 8), send=False)  # the last ones of a phase may be missing too
    log = listener.finish()
    assert (found(log), log.batches, log.lost_batches) == ({("stored", "CPU"): (4, 15)}, 4, 0)


def test_holes_in_a_replay_are_asked_for_again(publisher: Publisher, listener: EventListener) -> None:
    listener.begin()
    for _ in range(6):
        publisher.publish(stored("CPU", 1), send=False)
    publisher.dropped_from_replay = {2, 4}
    log = listener.finish()
    assert (found(log), log.lost_batches) == ({("stored", "CPU"): (6, 6)}, 0)


def test_what_the_publisher_no_longer_has_is_lost_and_said(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, keeps=2)
    listener = EventListener([publisher.source])
    try:
        listener.begin()
        publisher.publish(stored("CPU", 1))
        drained_until(listener, 1)
        for _ in range(5):
            publisher.publish(stored("CPU", 1), send=False)
        log = listener.finish()
        assert (found(log), log.batches, log.lost_batches) == ({("stored", "CPU"): (3, 3)}, 3, 3)
    finally:
        listener.close()
        publisher.close()


def test_without_a_replay_endpoint_a_gap_is_a_loss(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, replays=False)
    counter = EventCounter(publisher.source)
    publisher.close()
    counter.add(7, batch(stored("CPU", 1)))
    counter.add(9, batch(stored("CPU", 1)))
    counter.add(9, batch(stored("CPU", 1)))
    assert (counter.batches, counter.lost) == (2, 1)
    assert [count.blocks for count in counter.counts()] == [2]


def test_unreadable_batches_and_unknown_events_are_said_and_do_not_stop_the_rest() -> None:
    counter = EventCounter(KVEventSource(replica="3", endpoint="ipc://nowhere"))
    counter.add(0, b"\xff\xff")
    counter.add(1, batch({"type": "BlockMoved"}, stored("CPU", 2)))
    assert [(c.replica, c.blocks) for c in counter.counts()] == [("3", 2)]
    assert counter.notes[0].startswith("a batch of replica 3 could not be read")
    assert counter.notes[1] == "replica 3 sends an unknown event 'BlockMoved'"


def test_a_listener_keeps_no_events_and_not_more_kinds_than_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "MAX_KEYS", 3)
    counter = EventCounter(KVEventSource(replica="0", endpoint="ipc://nowhere"))
    counter.add(0, batch(*(stored(f"medium {index}", 1) for index in range(50))))
    assert len(counter.counts()) == 3


def test_nobody_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "CONNECT_SECONDS", 0.05)
    with pytest.raises(EngineError, match=r"nobody publishes KV cache events at ipc://.*--kv-events-config"):
        EventListener([KVEventSource(replica="0", endpoint=f"ipc://{tmp_path}/none-tcp:1")])
    with pytest.raises(EngineError, match="cannot listen to KV cache events at bogus"):
        EventListener([KVEventSource(replica="0", endpoint="bogus")])
    assert listen(()) is None


def test_a_dead_publisher_does_not_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(tmp_path)
    listener = EventListener([publisher.source])
    try:
        listener.begin()
        monkeypatch.setattr(kv_events, "REPLAY_SECONDS", 0.05)
        publisher.close()
        with pytest.raises(EngineError, match="does not replay KV cache events"):
            listener.finish()
    finally:
        listener.close()
