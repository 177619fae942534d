"""What the gate compares: the same seeded requests on two arms, with the block and the boot that each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_kvoffload.errors import IncomparableError
from pytest_kvoffload.records import Measurement, RequestSample

DEFAULT_PHASE = "restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One measurement of one arm in a gate run: the ``block``-th replay, answered by the ``boot``-th boot."""

    block: int
    boot: int
    measurement: Measurement
    tests: tuple[str, ...] = ()
    """The tests that took it, in a pytest run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTimes:
    """Latencies in seconds of equal requests, in request order; element i of both arms is the same request."""

    phase: str
    reference: tuple[float, ...]
    candidate: tuple[float, ...]
    blocks: tuple[int, ...]
    reference_boots: tuple[int, ...]
    candidate_boots: tuple[int, ...]

    @property
    def n(self) -> int:
        """Requests per arm."""
        return len(self.reference)


def latency_seconds(sample: RequestSample, metric: str) -> float | None:
    """Return ``ttft``, ``e2e`` or ``tpot`` of a request; ``None`` where it has none.

    ``tpot`` is the time per output token after the first: a request of one token has none.
    """
    if metric == "ttft":
        return sample.ttft_seconds
    if metric == "e2e":
        return sample.e2e_seconds
    first, last, tokens = sample.first_token_at_seconds, sample.last_token_at_seconds, len(sample.output_token_ids)
    if first is None or last is None or tokens < 2:
        return None
    return (last - first) / (tokens - 1)


def latencies(blocks: Sequence[Block], *, phase: str, metric: str = "ttft") -> tuple[float, ...]:
    """Return a latency of all requests of an arm, in the order of blocks and requests.

    Raises:
        IncomparableError: a request without it: it failed, or generated too few tokens.
    """
    found: list[float] = []
    for block in sorted(blocks, key=lambda b: b.block):
        for sample in sorted(block.measurement.phase(phase).samples, key=lambda s: s.index):
            found.append(_latency(sample, metric, block))
    return tuple(found)


def paired_times(
    reference: Sequence[Block], candidate: Sequence[Block], *, phase: str = DEFAULT_PHASE, metric: str = "ttft"
) -> PairedTimes:
    """Pair the requests of two arms by block, and within a block by their index in the phase.

    Raises:
        IncomparableError: a block is missing on one side, its requests differ, or one of them failed.
    """
    mine, theirs = {b.block: b for b in candidate}, {b.block: b for b in reference}
    if set(mine) != set(theirs):
        raise IncomparableError(f"the arms ran different blocks: {sorted(theirs)} and {sorted(mine)}")
    pairs: list[tuple[float, float, int, int, int]] = []
    for number in sorted(theirs):
        one, two = theirs[number], mine[number]
        left = {s.index: s for s in one.measurement.phase(phase).samples}
        right = {s.index: s for s in two.measurement.phase(phase).samples}
        if set(left) != set(right) or one.measurement.workload.seed != two.measurement.workload.seed:
            raise IncomparableError(
                f"block {number} sent other requests to {two.measurement.arm} than to the reference"
            )
        for index in sorted(left):
            a, b = left[index], right[index]
            if (a.session, a.turn, a.prompt_tokens) != (b.session, b.turn, b.prompt_tokens):
                raise IncomparableError(f"block {number}, request {index}: not the same request on both arms")
            pairs.append((_latency(a, metric, one), _latency(b, metric, two), number, one.boot, two.boot))
    columns = tuple(zip(*pairs, strict=True)) or ((), (), (), (), ())
    return PairedTimes(
        phase=phase,
        reference=columns[0],
        candidate=columns[1],
        blocks=columns[2],
        reference_boots=columns[3],
        candidate_boots=columns[4],
    )


def _latency(sample: RequestSample, metric: str, block: Block) -> float:
    value = latency_seconds(sample, metric)
    if value is not None and sample.error is None:
        return value
    where = f"request {sample.index} of block {block.block} on {block.measurement.arm}"
    if sample.ok:
        raise IncomparableError(f"{where} has no {metric}: it generated {len(sample.output_token_ids)} tokens")
    raise IncomparableError(f"{where} failed: {sample.error or 'no first token'}")
