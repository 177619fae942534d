"""A publisher of KV cache events that speaks as vLLM's does."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import msgspec
import zmq

from pytest_kvoffload.records import KVEventSource


def stored(medium: str, count: int, **more: Any) -> dict[str, Any]:
    hashes = [index.to_bytes(32, "big") for index in range(count)]
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": [], "lora_id": None}
    return {**event, "block_size": 0, "medium": medium, "lora_name": None, **more}


def removed(medium: str, count: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(range(count)), "medium": medium}


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


class Publisher:
    """A PUB socket with numbered batches and a ROUTER that replays them; batches can be withheld from the first."""

    def __init__(self, place: Path, *, replays: bool = True, keeps: int = 1000) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUB)
        self.source = KVEventSource(
            replica="0",
            endpoint=f"ipc://{place}/events-tcp:1",
            replay_endpoint=f"ipc://{place}/replay-tcp:1" if replays else None,
        )
        self.socket.bind(self.source.endpoint)
        self.kept: list[tuple[int, bytes]] = []
        self.keeps, self.number = keeps, itertools.count()
        self.dropped_from_replay: set[int] = set()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        if replays:
            self.thread.start()

    def publish(self, *events: dict[str, Any], send: bool = True) -> None:
        sequence, payload = next(self.number), batch(*events)
        self.kept = [*self.kept, (sequence, payload)][-self.keeps :]
        if send:
            self.socket.send_multipart((b"", sequence.to_bytes(8, "big"), payload))

    def _serve(self) -> None:
        assert self.source.replay_endpoint is not None
        with self.context.socket(zmq.ROUTER) as router:
            router.setsockopt(zmq.LINGER, 0)
            router.bind(self.source.replay_endpoint)
            while not self.over.is_set():
                if not router.poll(20):
                    continue
                client, _, start = router.recv_multipart()
                for sequence, payload in list(self.kept):
                    if sequence in self.dropped_from_replay:
                        self.dropped_from_replay.discard(sequence)
                    elif sequence >= int.from_bytes(start, "big"):
                        router.send_multipart((client, b"", b"", sequence.to_bytes(8, "big"), payload))
                router.send_multipart((client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))

    def close(self) -> None:
        self.over.set()
        if self.thread.is_alive():
            self.thread.join()
        self.socket.close(linger=0)
        self.context.destroy(linger=0)
