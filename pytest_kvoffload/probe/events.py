"""The KV cache events of each phase of a measurement, where the server publishes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_kvoffload.errors import EngineError
from pytest_kvoffload.records import KVEventLog, ServerInfo

if TYPE_CHECKING:
    from pytest_kvoffload.metrics.kv_events import EventListener


class PhaseEvents:
    """Listens while a measurement runs, and gives one log for each phase."""

    def __init__(self) -> None:
        self._listener: EventListener | None = None
        self._info: ServerInfo | None = None

    def begin(self, info: ServerInfo) -> None:
        """A phase begins on this server. After a restart its publishers are new ones.

        Raises:
            EngineError: the publishers that the server was started with cannot be reached.
        """
        if not info.kv_event_sources:
            return
        if info is not self._info:
            from pytest_kvoffload.metrics.kv_events import listen

            self.close()
            self._listener, self._info = listen(info.kv_event_sources), info
        if self._listener is not None:
            self._listener.begin()

    def drain(self) -> None:
        """Count what has come; called while requests run."""
        if self._listener is not None:
            self._listener.drain()

    def end(self) -> KVEventLog | None:
        """Return what the phase published, ``None`` when nothing listens.

        An engine that died does not replay: what it published last is then lost, and the log says so.
        """
        if self._listener is None:
            return None
        try:
            return self._listener.finish()
        except EngineError as error:
            return KVEventLog(lost_batches=1, notes=(str(error),))

    def close(self) -> None:
        """Stop listening. Safe to repeat."""
        if self._listener is not None:
            self._listener.close()
        self._listener = self._info = None
