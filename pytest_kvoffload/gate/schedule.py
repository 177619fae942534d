"""Which block is replayed in which boot, and when the evidence is looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence

LOOKS = 3
"""At how many points the evidence is looked at; the error is spent over all of them."""


def schedule_of(blocks: int, boots: int) -> list[list[int]]:
    """Spread blocks over boots as evenly as can be, in order."""
    boots = min(boots, blocks)
    size, rest = divmod(blocks, boots)
    out, start = [], 0
    for boot in range(boots):
        end = start + size + (boot < rest)
        out.append(list(range(start, end)))
        start = end
    return out


def looks_of(blocks: int, per_block: int) -> tuple[int, ...]:
    """Requests at which to look: at the ends of equal shares of the blocks."""
    shares = {math.ceil(blocks * share / LOOKS) for share in range(1, LOOKS + 1)}
    return tuple(sorted(share * per_block for share in shares if share > 1 or blocks == 1)) or (blocks * per_block,)


def chunks_of(blocks: Sequence[int], stops: Sequence[int]) -> list[list[int]]:
    """Cut blocks where a look is due: ``stops`` count blocks from the start of the run."""
    out: list[list[int]] = []
    for block in blocks:
        if out and out[-1][-1] + 1 not in stops:
            out[-1].append(block)
        else:
            out.append([block])
    return out
