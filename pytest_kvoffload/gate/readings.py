"""Numbers of a whole arm that are counted, not timed: hit rates, failed requests, preemptions."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import Meters, read_meters


def counted(blocks: Sequence[Block], *, metric: str, phase: str, tier: str | None = None) -> float | str:
    """Return a counted metric of an arm over all its blocks, or the reason why there is none.

    Args:
        blocks: the arm's.
        metric: ``hit_rate`` (a share of the prompt tokens), ``failed_requests`` or ``preemptions``.
        phase: in which phase.
        tier: of a hit rate; ``None`` is device and external together.
    """
    if not blocks:
        return "the arm was not measured"
    for block in blocks:
        if phase not in block.measurement.phase_names:
            return (
                f"{block.measurement.arm} has no phase {phase!r} (it has: {', '.join(block.measurement.phase_names)})"
            )
    if metric == "failed_requests":
        return float(sum(not s.ok for b in blocks for s in b.measurement.phase(phase).samples))
    if metric == "preemptions":
        total = 0.0
        for block in blocks:
            reading = _meters(block, phase).preemptions
            if reading.value is None:
                return f"{reading.metric}: {reading.reason}"
            total += reading.value
        return total
    hits = asked = 0.0
    for block in blocks:
        meters = _meters(block, phase)
        if tier is not None and tier not in meters.hit_tokens:
            return f"no hit rate of tier {tier}: this server tells of {', '.join(sorted(meters.hit_tokens))}"
        found = hit_rate(meters, tier)
        if not isinstance(found, HitRate):
            return str(found)
        hits, asked = hits + found.hit_tokens, asked + found.prompt_tokens
    return hits / asked


def _meters(block: Block, phase: str) -> Meters:
    measurement = block.measurement
    result = measurement.phase(phase)
    prompt = sum(s.prompt_tokens for s in result.samples if s.ok)
    return read_meters(result.delta, vllm_version=measurement.server.vllm_version, prompt_tokens=prompt or None)
