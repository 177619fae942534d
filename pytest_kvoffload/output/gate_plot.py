"""Both arms' latencies as two rows of blocks, at most 72 columns wide: it fits a pull request and a terminal."""

from __future__ import annotations

from pytest_kvoffload.gate.spread import Spread

BLOCKS = " ▁▂▃▄▅▆▇█"
LABEL_WIDTH = 10


def plot(spread: Spread) -> str:
    """Return lines: what is shown, a row for each arm (the height is the share of its requests), and the scale.

    Every step with a request shows at least the lowest block: a tail is a few requests, and must be seen.
    """
    n = sum(spread.reference)
    tallest = max(max(spread.reference) / n, max(spread.candidate) / sum(spread.candidate))
    rows = [
        f"{'reference':{LABEL_WIDTH}}{_blocks(spread.reference, tallest)} p50 {_ms(spread.reference_p50_seconds)}",
        f"{'candidate':{LABEL_WIDTH}}{_blocks(spread.candidate, tallest)} p50 {_ms(spread.candidate_p50_seconds)}",
    ]
    edges = spread.edges_seconds
    low, middle, high = (_ms(edges[place]) for place in (0, len(edges) // 2, -1))
    width = len(spread.reference)
    gap = width // 2 - len(low)
    scale = f"{low}{' ' * gap}{middle}".ljust(width - len(high)) + high
    title = f"TTFT of phase {spread.phase}, {n} and {sum(spread.candidate)} requests, logarithmic scale"
    return "\n".join([title[:72], *rows, " " * LABEL_WIDTH + scale])


def _blocks(counts: tuple[int, ...], tallest: float) -> str:
    total = sum(counts)
    heights = (max(1, round(count / total / tallest * 8)) if count else 0 for count in counts)
    return "".join(BLOCKS[height] for height in heights)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.3g}s"
