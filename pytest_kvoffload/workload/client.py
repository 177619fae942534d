"""The streaming client: one connection a request, nothing but the clock on the way.

Time to first token runs from just before the bytes of the request are written, on a connection that is already
open, to the arrival of the piece that completes the first token's event. Requests are encoded before the phase
begins and answers are read after they ended (:mod:`.tape`), so that the event loop only notes times; it runs in a
thread of its own with garbage collection off, and the caller's thread is free for progress and for Ctrl-C.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.records import RequestSample, RequestSpec
from pytest_kvoffload.workload.plan import PlannedPhase
from pytest_kvoffload.workload.tape import Answer, Tape, read_tape, request_bytes, sample_of

TICK_SECONDS = 0.25
"""How often the caller's thread looks at what has finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go and what they all carry."""

    url: str
    model: str
    seed: int = 0
    timeout_seconds: float = 120.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Job:
    """One request on its way."""

    spec: RequestSpec
    history: tuple[int, ...] = ()
    tape: Tape = field(default_factory=list)
    sent_at: float | None = None
    ended: bool = False
    failure: str | None = None
    taken: bool = False


class _Recorder(asyncio.Protocol):
    """Writes what arrives on the tape; the time is taken before anything else is done with it."""

    def __init__(self, job: _Job, closed: asyncio.Future[None]) -> None:
        self._tape, self._closed = job.tape, closed

    def data_received(self, data: bytes) -> None:
        self._tape.append((time.perf_counter(), data))
        # The last chunk. Servers close the connection then, as they were asked to; a proxy may keep it open.
        if data.endswith(b"0\r\n\r\n") and len(self._tape) > 1 and not self._closed.done():
            self._closed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


def body_of(spec: RequestSpec, target: Target, history: tuple[int, ...] = ()) -> bytes:
    """Encode the JSON body of a completion request: greedy, seeded, streamed, of a fixed length."""
    prompt: str | tuple[int, ...] = history + spec.prompt_token_ids if spec.prompt_text is None else spec.prompt_text
    body: dict[str, object] = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": spec.output_tokens,
        "temperature": 0,
        "seed": target.seed,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    if spec.cache_salt is not None:
        body["cache_salt"] = spec.cache_salt
    return msgspec.json.encode(body)


class Drive:
    """Sends one phase. :meth:`run` blocks until it is over; :meth:`samples` has what there is at any time.

    Args:
        phase: the requests and how many may run at once.
        target: the server.
        history: for chat turns whose predecessor ran in an earlier phase, that request's whole text: its prompt
            and what was generated, by request index.
    """

    def __init__(
        self, phase: PlannedPhase, target: Target, *, history: Mapping[int, tuple[int, ...]] | None = None
    ) -> None:
        parts = urlsplit(target.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise WorkloadError(f"not an http(s) URL: {target.url!r}")
        self._phase, self._target, self._parts = phase, target, parts
        self._history = dict(history or {})
        self._jobs = [_Job(spec=spec) for spec in phase.requests]
        self._finished: dict[int, RequestSample] = {}
        self._origin = time.perf_counter()
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._crash: BaseException | None = None

    # -------------------------------------------------------------------------------- the caller's thread
    def run(self, on_tick: Callable[[], None] | None = None) -> None:
        """Send everything. ``on_tick`` runs in the caller's thread; what it raises stops the phase and passes on."""
        thread = threading.Thread(target=self._main, name=f"kvoffload-{self._phase.name}", daemon=True)
        with _quiet_interpreter():
            thread.start()
            try:
                while thread.is_alive():
                    thread.join(TICK_SECONDS)
                    if on_tick is not None:
                        on_tick()
            finally:
                self._halt()
                thread.join(5.0)
        if self._crash is not None:
            raise self._crash

    def samples(self) -> tuple[RequestSample, ...]:
        """Return the samples of all requests that have ended, in sending order. Requests still running are absent."""
        for position, job in enumerate(self._jobs):
            if job.ended and position not in self._finished:
                self._finished[position] = self._sample(job)
        return tuple(self._finished[position] for position in sorted(self._finished))

    def transcripts(self) -> dict[int, tuple[int, ...]]:
        """Return, by request index, prompt and generated tokens of every request that succeeded."""
        out: dict[int, tuple[int, ...]] = {}
        for position, sample in enumerate(self._jobs):
            result = self._finished.get(position)
            if result is not None and result.ok:
                out[sample.spec.index] = sample.history + sample.spec.prompt_token_ids + result.output_token_ids
        return out

    def _sample(self, job: _Job) -> RequestSample:
        answer = read_tape(job.tape, closed=True) if job.tape else Answer(error="no answer: connection closed")
        if job.failure is not None:
            answer.error = job.failure
        sent = self._origin if job.sent_at is None else job.sent_at
        return sample_of(
            job.spec,
            answer,
            phase=self._phase.name,
            origin=self._origin,
            sent_at=sent,
            history_tokens=len(job.history),
        )

    def _halt(self) -> None:
        self._stop.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not loop.is_closed():
            # The loop may close between the check and the call; then there is nothing left to stop.
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                return

    # ---------------------------------------------------------------------------------- the loop's thread
    def _main(self) -> None:
        try:
            asyncio.run(self._all())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._crash = error

    async def _all(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._stop.is_set():
            return
        done = {job.spec.index: asyncio.Event() for job in self._jobs}
        encoded = [None if job.spec.follows is not None else self._encode(job) for job in self._jobs]
        context = ssl.create_default_context() if self._parts.scheme == "https" else None
        self._origin = time.perf_counter()
        timed = all(job.spec.arrival_seconds is not None for job in self._jobs)
        queue = iter(list(zip(self._jobs, encoded, strict=True)))

        async def one(job: _Job, raw: bytes | None) -> None:
            if job.spec.follows in done:
                await done[job.spec.follows].wait()
            await self._exchange(job, raw, context)
            done[job.spec.index].set()

        async def worker() -> None:
            for job, raw in queue:
                await one(job, raw)

        async def on_time(job: _Job, raw: bytes | None) -> None:
            await asyncio.sleep(self._origin + (job.spec.arrival_seconds or 0.0) - time.perf_counter())
            await one(job, raw)

        if timed:
            await asyncio.gather(*(on_time(job, raw) for job, raw in queue))
        else:
            await asyncio.gather(*(worker() for _ in range(min(self._phase.concurrency, len(self._jobs)))))

    def _encode(self, job: _Job) -> bytes:
        parts = self._parts
        target = parts.path.rstrip("/") + "/v1/completions"
        return request_bytes(target, parts.netloc, self._target.headers, body_of(job.spec, self._target, job.history))

    async def _exchange(self, job: _Job, raw: bytes | None, context: ssl.SSLContext | None) -> None:
        timeout = self._target.timeout_seconds
        try:
            if raw is None:
                if not self._attach_history(job):
                    job.failure = f"not sent: request {job.spec.follows}, whose answer it continues, failed"
                    return
                raw = self._encode(job)
            await asyncio.wait_for(self._send_and_wait(job, raw, context), timeout)
        except (asyncio.TimeoutError, TimeoutError):
            job.failure = f"no complete answer within {timeout:g} s"
        except OSError as error:
            job.failure = f"{type(error).__name__}: {error}"
        finally:
            # A cancelled request has not ended: it neither failed nor succeeded.
            job.ended = not self._stop.is_set() or job.failure is not None

    async def _send_and_wait(self, job: _Job, raw: bytes, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()
        port = self._parts.port or (443 if context else 80)
        transport, _ = await loop.create_connection(
            lambda: _Recorder(job, closed), self._parts.hostname or "", port, ssl=context
        )
        try:
            job.sent_at = time.perf_counter()
            transport.write(raw)
            await closed
        finally:
            transport.abort()

    def _attach_history(self, job: _Job) -> bool:
        """Put the predecessor's conversation before a chat turn; ``False`` when there is none to continue."""
        follows = job.spec.follows
        if follows is None:
            return True
        before = self._history.get(follows)
        if before is None:
            for other in self._jobs:
                if other.spec.index == follows and other.ended and other.failure is None:
                    answer = read_tape(other.tape, closed=True)
                    if answer.error is None:
                        before = other.history + other.spec.prompt_token_ids + tuple(answer.token_ids)
        if before is None:
            return False
        job.history = before
        return True


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """Keep the interpreter from adding to latencies: no collection, and short turns for other threads."""
    was_enabled, interval = gc.isenabled(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
        if was_enabled:
            gc.enable()
