"""Listening to KV cache events: what vLLM stored, removed and cleared, by medium and replica.

vLLM publishes one batch for each engine step that changed a cache, over ZMQ, numbered from 0. A batch that a slow
listener missed is gone from the socket; the publisher's replay endpoint still has it for a while. Batches are counted
and let go at once, so that a listener's memory does not grow with the traffic.

Media are ``GPU`` (the device, on the CPU backend too), ``CPU`` (the host tier) and ``STORAGE`` (disk and object tiers,
each with ``enable_kv_events`` of its own). A block of a tier is one chunk unless its connector describes each block
(``self_describing_kv_events``).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from pytest_kvoffload.errors import EngineError
from pytest_kvoffload.records import KVEventCount, KVEventLog, KVEventSource

if TYPE_CHECKING:
    import zmq

Kind: TypeAlias = Literal["stored", "removed", "cleared"]
_KINDS: dict[str, Kind] = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
_END = (-1).to_bytes(8, "big", signed=True)
HIGH_WATER_MARK = 100_000
"""Batches that the socket keeps while nobody reads; vLLM's own default for its side."""
CONNECT_SECONDS = 10.0
REPLAY_SECONDS = 10.0
SILENCE_SECONDS = 2.0
"""After the first batch of a replay: how long its next one may take before the rest counts as dropped."""
MAX_ROUNDS = 50
MAX_KEYS = 1000
"""Distinct pairs of kind and medium that are counted; more is no vLLM."""


class _Event(msgspec.Struct):
    type: str
    block_hashes: list[int | bytes] = []
    medium: str | None = None


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Event]
    data_parallel_rank: int | None = None


class EventCounter:
    """What one publisher's numbered batches say, each counted once, in whatever order they arrive."""

    def __init__(self, source: KVEventSource) -> None:
        self.source = source
        self.last: int | None = None
        self._decode = msgspec.msgpack.Decoder(_Batch).decode
        self.reset()

    def reset(self) -> None:
        """Begin to count anew; the number of the last batch is kept."""
        self.events: Counter[tuple[Kind, str]] = Counter()
        self.blocks: Counter[tuple[Kind, str]] = Counter()
        self.batches = self.lost = 0
        self.notes: list[str] = []

    def missing(self, sequence: int) -> int:
        """Return how many batches lie between the last one and this one."""
        return 0 if self.last is None else max(0, sequence - self.last - 1)

    def add(self, sequence: int, payload: bytes) -> None:
        """Count a batch; one that was counted before is passed over, what lies between counts as lost."""
        if self.last is not None and sequence <= self.last:
            return
        self.lost += self.missing(sequence)
        self.last = sequence
        self.batches += 1
        try:
            batch = self._decode(payload)
        except msgspec.MsgspecError as error:
            self._note(f"a batch of replica {self.source.replica} could not be read: {error}")
            return
        for event in batch.events:
            kind = _KINDS.get(event.type)
            if kind is None:
                self._note(f"replica {self.source.replica} sends an unknown event {event.type!r}")
                continue
            key = (kind, event.medium or "")
            if key in self.events or len(self.events) < MAX_KEYS:
                self.events[key] += 1
                self.blocks[key] += len(event.block_hashes)

    def counts(self) -> tuple[KVEventCount, ...]:
        """Return what was counted, sorted."""
        return tuple(
            KVEventCount(
                replica=self.source.replica,
                kind=kind,
                medium=medium,
                events=self.events[kind, medium],
                blocks=self.blocks[kind, medium],
            )
            for kind, medium in sorted(self.events)
        )

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 5:
            self.notes.append(text)


class EventListener:
    """Listens to the publishers of a server. No thread: ZMQ keeps what arrives until :meth:`drain` counts it.

    Args:
        sources: the publishers.

    Raises:
        EngineError: one of them cannot be connected to.
    """

    def __init__(self, sources: Sequence[KVEventSource]) -> None:
        import zmq

        self._context = zmq.Context()
        self._streams: list[tuple[EventCounter, zmq.Socket[bytes]]] = []
        try:
            for source in sources:
                self._streams.append((EventCounter(source), self._subscribe(source)))
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Forget what was published until now, and count from here."""
        for counter, socket in self._streams:
            self._read(counter, socket)
            self._catch_up(counter)
            if counter.last is None and counter.source.replay_endpoint is not None:
                counter.last = -1  # the publisher has nothing to replay: its first batch will be number 0
            counter.reset()

    def drain(self) -> None:
        """Count what has arrived. Called now and then while a phase runs, it keeps the socket's queue short."""
        for counter, socket in self._streams:
            self._read(counter, socket)

    def finish(self) -> KVEventLog:
        """Count everything that was published until now, and return it; counting begins anew."""
        for counter, socket in self._streams:
            self._read(counter, socket)
            self._catch_up(counter)
        counters = [counter for counter, _ in self._streams]
        log = KVEventLog(
            counts=tuple(count for counter in counters for count in counter.counts()),
            batches=sum(counter.batches for counter in counters),
            lost_batches=sum(counter.lost for counter in counters),
            notes=tuple(note for counter in counters for note in counter.notes),
        )
        for counter in counters:
            counter.reset()
        return log

    def close(self) -> None:
        """Let go of the sockets. Safe to repeat."""
        for _, socket in self._streams:
            socket.close(linger=0)
        self._streams = []
        self._context.destroy(linger=0)

    def _subscribe(self, source: KVEventSource) -> zmq.Socket[bytes]:
        import zmq

        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            socket.connect(source.endpoint)
            socket.setsockopt(zmq.SUBSCRIBE, source.topic.encode())
            if not monitor.poll(int(CONNECT_SECONDS * 1000)):
                socket.close(linger=0)
                raise EngineError(
                    f"nobody publishes KV cache events at {source.endpoint} (waited {CONNECT_SECONDS:g} s): is the "
                    "server's --kv-events-config that endpoint's, and can it be reached from here?"
                )
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise EngineError(f"cannot listen to KV cache events at {source.endpoint}: {error}") from error
        finally:
            if not socket.closed:
                with contextlib.suppress(zmq.ZMQError):
                    socket.disable_monitor()
            monitor.close(linger=0)
        return socket

    def _read(self, counter: EventCounter, socket: zmq.Socket[bytes]) -> None:
        import zmq

        while True:
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) != 3:
                continue
            sequence = int.from_bytes(parts[1], "big")
            if counter.missing(sequence):
                self._catch_up(counter, until=sequence)
            counter.add(sequence, parts[2])

    def _catch_up(self, counter: EventCounter, *, until: int | None = None) -> None:
        """Ask for what is missing: all that was published after the last batch counted, or up to a number.

        The publisher's socket drops what it cannot send fast enough, so a long answer has holes: ask again from there.
        """
        if counter.source.replay_endpoint is None:
            return
        for _ in range(MAX_ROUNDS):
            if self._one_replay(counter, counter.source.replay_endpoint, until):
                return
        counter.lost += 1  # how many is not known: it is published faster than it can be asked for

    def _one_replay(self, counter: EventCounter, endpoint: str, until: int | None) -> bool:
        """Count one answer; return whether nothing is missing any more."""
        import zmq

        with self._context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(endpoint)
            start = 0 if counter.last is None else counter.last + 1
            socket.send_multipart((b"", start.to_bytes(8, "big")))
            began = False
            while socket.poll(int((SILENCE_SECONDS if began else REPLAY_SECONDS) * 1000)):
                _, _, number, payload = socket.recv_multipart()
                sequence = int.from_bytes(number, "big")
                if number == _END or (until is not None and sequence >= until):
                    return True
                if began and counter.missing(sequence):
                    return False
                counter.add(sequence, payload)
                began = True
        if not began:
            raise EngineError(
                f"{endpoint} does not replay KV cache events (waited {REPLAY_SECONDS:g} s): is the engine alive?"
            )
        return False


def listen(sources: Sequence[KVEventSource]) -> EventListener | None:
    """Return a listener, ``None`` where nothing publishes."""
    return EventListener(sources) if sources else None


def blocks(log: KVEventLog, kind: Kind, *, medium: str | None = None, replica: str | None = None) -> int:
    """Sum the blocks of one kind; the medium's case does not matter (Mooncake writes ``cpu``)."""
    return sum(count.blocks for count in log.counts if count.kind == kind and _matching(medium, replica)(count))


def _matching(medium: str | None, replica: str | None) -> Callable[[Any], bool]:
    return lambda count: (
        (medium is None or count.medium.lower() == medium.lower()) and (replica is None or count.replica == replica)
    )
