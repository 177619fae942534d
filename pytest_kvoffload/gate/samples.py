"""What the gate compares: the same seeded requests on two arms, with the block and the boot that each belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_kvoffload.errors import IncomparableError
from pytest_kvoffload.records import Measurement

DEFAULT_PHASE = "restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One measurement of one arm in a gate run: the ``block``-th replay, answered by the ``boot``-th boot."""

    block: int
    boot: int
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTimes:
    """TTFT in seconds of equal requests, in request order; element i of both arms is the same request."""

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


def paired_ttft(reference: Sequence[Block], candidate: Sequence[Block], *, phase: str = DEFAULT_PHASE) -> PairedTimes:
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
        if set(left) != set(right):
            raise IncomparableError(
                f"block {number} sent other requests to {two.measurement.arm} than to the reference"
            )
        for index in sorted(left):
            a, b = left[index], right[index]
            if (a.session, a.turn, a.prompt_tokens) != (b.session, b.turn, b.prompt_tokens):
                raise IncomparableError(f"block {number}, request {index}: not the same request on both arms")
            if a.ttft_seconds is None or b.ttft_seconds is None:
                failed = one if a.ttft_seconds is None else two
                why = (a if a.ttft_seconds is None else b).error or "no first token"
                raise IncomparableError(f"request {index} of block {number} failed on {failed.measurement.arm}: {why}")
            pairs.append((a.ttft_seconds, b.ttft_seconds, number, one.boot, two.boot))
    columns = tuple(zip(*pairs, strict=True)) or ((), (), (), (), ())
    return PairedTimes(
        phase=phase,
        reference=columns[0],
        candidate=columns[1],
        blocks=columns[2],
        reference_boots=columns[3],
        candidate_boots=columns[4],
    )
