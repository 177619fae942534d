"""The listener and the publisher of an older vLLM, without a server: two ranks, batches of every kind, replay.

The newest one is listened to in tests/engine/test_fleet_real_engine.py, through its server.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_kvoffload.engine.event_sources import booted_sources, event_args
from pytest_kvoffload.engine.provision import ensure_engine
from pytest_kvoffload.metrics.kv_events import EventListener
from pytest_kvoffload.records import EngineConfig

pytestmark = pytest.mark.engine

LISTENING = EngineConfig(kind="cpu", kv_events=True)
SCRIPT = """
import json, sys
from vllm.distributed.kv_events import (
    AllBlocksCleared, BlockRemoved, BlockStored, EventPublisherFactory, KVEventBatch
)
from vllm.config.kv_events import KVEventsConfig

config = KVEventsConfig(**json.loads(sys.argv[1]))
publishers = [EventPublisherFactory.create(config, rank) for rank in (0, 1)]

def publish(rank, *events):
    publishers[rank].publish(KVEventBatch(ts=1.0, events=list(events)))

def stored(medium, count):
    return BlockStored(block_hashes=[bytes([index]) * 32 for index in range(count)], parent_block_hash=None,
                       token_ids=[1, 2], block_size=128, lora_id=None, medium=medium, lora_name=None)

publish(0, stored("GPU", 99))
print("ready", flush=True)
for line in sys.stdin:
    publish(0, stored("GPU", 8), stored("CPU", 1))
    publish(0, BlockRemoved(block_hashes=[7, 8], medium="CPU"), AllBlocksCleared())
    publish(1, stored("STORAGE", 4))
    print("published", flush=True)
"""


@pytest.fixture(params=["0.27.1"])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    python = ensure_engine(request.param).python
    _, config = event_args(LISTENING, (), tmp_path)
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        [str(python), "-c", SCRIPT, json.dumps(json.loads(config))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    log.close()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "ready\n":
                break
        else:
            raise AssertionError((tmp_path / "log").read_text())
        yield process
    finally:
        process.kill()
        process.communicate()


def test_every_batch_of_vllms_own_publisher_is_counted(publisher: subprocess.Popen[str], tmp_path: Path) -> None:
    listener = EventListener(booted_sources(LISTENING, tmp_path, replicas=2))
    try:
        listener.begin()
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        for _ in range(3):
            publisher.stdin.write("\n")
            publisher.stdin.flush()
            for line in publisher.stdout:
                if line == "published\n":
                    break
        log = listener.finish()
        while log.batches < 9:  # the publisher's queue may not be empty yet
            more = listener.finish()
            assert publisher.poll() is None
            log = type(log)(
                counts=(*log.counts, *more.counts),
                batches=log.batches + more.batches,
                lost_batches=log.lost_batches + more.lost_batches,
            )
    finally:
        listener.close()
    assert (log.batches, log.lost_batches, log.notes) == (9, 0, ())
    totals: dict[tuple[str, str, str], int] = {}
    for count in log.counts:
        key = (count.replica, count.kind, count.medium)
        totals[key] = totals.get(key, 0) + count.blocks
    assert totals == {
        ("0", "stored", "GPU"): 24,
        ("0", "stored", "CPU"): 3,
        ("0", "removed", "CPU"): 6,
        ("0", "cleared", ""): 0,
        ("1", "stored", "STORAGE"): 12,
    }
