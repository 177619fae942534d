"""KV cache events of each phase of a measurement."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM
from fakes.kv_publisher import Publisher, removed, stored

import pytest_kvoffload.metrics.kv_events as kv_events
from pytest_kvoffload import assert_blocks_stored
from pytest_kvoffload.metrics.kv_events import blocks
from pytest_kvoffload.probe import measure
from pytest_kvoffload.records import ConnectorConfig, KVEventLog, Measurement, ServerInfo, WorkloadConfig

NATIVE = ConnectorConfig(name="native", kind="native", options={"size_gib": 1.0})
WORKLOAD = WorkloadConfig(prefix_tokens=160, suffix_tokens=5, output_tokens=2, sessions=6)


class Talking(FakeVLLM):
    """Publishes what it stores; may withhold every n-th batch from its listeners."""

    def __init__(self, publisher: Publisher, *, withhold: int = 0) -> None:
        super().__init__(FakeConfig(tier_blocks=400))
        self.publisher, self.withhold, self.count = publisher, withhold, 0

    @property
    def info(self) -> ServerInfo:
        return dataclasses.replace(super().info, kv_event_sources=(self.publisher.source,))

    def admit(self, prompt: list[int], salt: str) -> tuple[int, int]:
        before = len(self.tier)
        local, external = super().admit(prompt, salt)
        self.count += 1
        events = [stored("GPU", len(prompt) // 16)]
        if len(self.tier) > before:
            events += [stored("CPU", 1) for _ in range(len(self.tier) - before)]
        send = not self.withhold or self.count % self.withhold != 0
        self.publisher.publish(*events, removed("GPU", 1), send=send)
        return local, external


def run(server: FakeVLLM) -> Measurement:
    return measure(server, arm="native", connector=NATIVE, workload=WORKLOAD)


def log(made: Measurement, phase: str) -> KVEventLog:
    found = made.phase(phase).kv_events
    assert found is not None
    return found


@pytest.mark.parametrize("withhold", [0, 2, 5])
def test_every_phase_has_its_own_events_however_they_come(tmp_path: Path, withhold: int) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(stored("CPU", 50))  # before the measurement
    try:
        with Talking(publisher, withhold=withhold) as server:
            made = run(server)
            again = run(server)
    finally:
        publisher.close()
    for one in (made, again):
        cold, restored = log(one, "cold"), log(one, "restored")
        assert (blocks(cold, "stored", medium="CPU"), blocks(cold, "stored", medium="GPU")) == (60, 60)
        assert (blocks(restored, "stored", medium="CPU"), blocks(restored, "removed", medium="GPU")) == (0, 6)
        assert (cold.lost_batches, restored.lost_batches, cold.batches) == (0, 0, 6)
        assert_blocks_stored(one, medium="CPU", at_least=60, phase="cold")


def test_without_sources_nobody_listens() -> None:
    with FakeVLLM(FakeConfig(tier_blocks=400)) as server:
        assert [phase.kv_events for phase in run(server).phases] == [None, None, None]


def test_a_publisher_that_dies_loses_its_events_and_not_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(tmp_path)

    class Dying(Talking):
        def admit(self, prompt: list[int], salt: str) -> tuple[int, int]:
            if self.count == 4:
                monkeypatch.setattr(kv_events, "REPLAY_SECONDS", 0.05)
                self.publisher.over.set()
            return super().admit(prompt, salt)

    monkeypatch.setattr(kv_events.EventListener, "begin", _once(kv_events.EventListener.begin))
    try:
        with Dying(publisher) as server:
            made = run(server)
    finally:
        publisher.close()
    assert log(made, "cold").lost_batches == 1
    assert any("does not replay KV cache events" in note for note in made.phase("cold").notes)
    assert any("their counts are lower bounds" in note for note in made.phase("cold").notes)


def _once(begin: object) -> object:
    """Begin the first phase only: the later ones would fail at once, and that is not what is looked at."""
    seen: list[object] = []

    def first(self: kv_events.EventListener) -> None:
        if not seen:
            seen.append(self)
            begin(self)  # type: ignore[operator]

    return first
