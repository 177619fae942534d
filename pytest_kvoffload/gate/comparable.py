"""Whether two arms may be compared at all. Unlike runs are refused, never passed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_kvoffload.gate.samples import DEFAULT_PHASE, Block
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.records import Measurement

MACHINE_KEYS = ("cpu", "cpus", "gpu")
"""Keys of a measurement's environment that must be equal, where both have them."""


def differences(
    reference: Sequence[Block], candidate: Sequence[Block], *, across: Sequence[str] = (), called: str = "the reference"
) -> tuple[str, ...]:
    """Return why two arms cannot be compared; empty when they can.

    Args:
        reference: the blocks of the reference.
        candidate: the blocks of the candidate.
        across: what the comparison is about and may therefore differ: ``vllm``, ``model``.
        called: what the first arm is called.
    """
    if not reference or not candidate:
        return ("an arm was not measured",)
    first = reference[0].measurement
    # Every boot counts: a server that finds less memory the second time is another server.
    others = [(candidate[0], "the candidate")]
    others += [(block, f"boot {block.boot + 1} of the candidate") for block in candidate[1:]]
    others += [(block, f"its boot {block.boot + 1}") for block in reference[1:]]
    found: dict[str, str] = {}
    for block, where in others:
        for name, one, two in _unlike(first, block.measurement, across):
            found.setdefault(name, f"{name}: {one} on {called}, {two} on {where}{_HINTS.get(name, '')}")
    return tuple(found.values())


_HINTS = {"device cache": " (num_gpu_blocks of [engine] makes it the same at every boot)"}


def _unlike(one: Measurement, two: Measurement, across: Sequence[str]) -> Iterator[tuple[str, object, object]]:
    """Yield what differs: its name, and both values."""
    fields: Mapping[str, Callable[[Measurement], object]] = {
        "model": lambda m: m.server.model,
        "vllm": lambda m: m.server.vllm_version,
        "engine": lambda m: m.server.engine_kind,
        "device cache": lambda m: m.server.device_cache_tokens,
        "block size": lambda m: m.server.block_size_tokens,
        "workload": lambda m: dataclasses.replace(m.workload, seed=0),
    }
    for name, read in fields.items():
        if name not in across and read(one) != read(two):
            yield name, read(one), read(two)
    for key in MACHINE_KEYS:
        a, b = one.environment.get(key), two.environment.get(key)
        if a is not None and b is not None and a != b:
            yield key, a, b


def unusable(blocks: Sequence[Block], *, phase: str = DEFAULT_PHASE) -> tuple[str, ...]:
    """Return what makes an arm's blocks worthless as evidence: interrupted, failed requests, no such phase."""
    found: list[str] = []
    for block in blocks:
        measurement = block.measurement
        where = f"{measurement.arm}, block {block.block}"
        if not measurement.complete:
            found.append(f"{where}: not complete ({'; '.join(measurement.notes) or 'interrupted'})")
        if phase not in measurement.phase_names:
            found.append(f"{where}: no phase {phase!r}")
            continue
        failed = [s for p in measurement.phases for s in p.samples if not s.ok]
        if failed:
            found.append(f"{where}: {len(failed)} failed requests, the first: {failed[0].error}")
    return tuple(found)


def tier_never_reached(blocks: Sequence[Block], *, phase: str = DEFAULT_PHASE) -> str | None:
    """Say that a tier was never reached, with what the meters showed; ``None`` when it served or there is none.

    An arm whose connector is of kind ``recompute`` has no tier to reach.
    """
    if not blocks or blocks[0].measurement.connector.kind == "recompute":
        return None
    hits = asked = 0.0
    for block in blocks:
        measurement = block.measurement
        result = measurement.phase(phase)
        prompt = sum(s.prompt_tokens for s in result.samples if s.ok)
        meters = read_meters(result.delta, vllm_version=measurement.server.vllm_version, prompt_tokens=prompt or None)
        found = hit_rate(meters, "external")
        if not isinstance(found, HitRate):
            return f"{measurement.arm}: {found}"
        hits, asked = hits + found.hit_tokens, asked + found.prompt_tokens
    if hits > 0:
        return None
    return (
        f"the tier of {blocks[0].measurement.arm} was never reached: 0 of {asked:g} prompt tokens came through the "
        f"connector in phase {phase!r}; is the connector's configuration read at all (a misspelt key is ignored)?"
    )
