"""One true measurement of a fake server, and blocks of it with the times that a test wants."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fakes.fake_vllm import FakeConfig, FakeVLLM
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, Measurement, ModelConfig, WorkloadConfig
from pytest_kvoffload.session import Arm, RunSession

PER_BLOCK = 30
WORKLOAD = WorkloadConfig(prefix_tokens=64, suffix_tokens=8, output_tokens=1, sessions=PER_BLOCK)


def take(folder: Path, kind: str) -> Measurement:
    """Measure a fake server once."""
    with FakeVLLM(FakeConfig(tier_blocks=100_000 if kind == "native" else 0)) as server:
        arm = Arm(
            engine=EngineConfig(kind="attach", url=server.url),
            model=ModelConfig(),
            connector=ConnectorConfig(name=kind, kind=kind, options={"size_gib": 1.0} if kind == "native" else {}),
        )
        return RunSession(folder).measure(arm, WORKLOAD)


def blocks_of(measurement: Measurement, seconds: Sequence[float], *, name: str, boots: int = 2) -> list[Block]:
    """Return blocks of the restored phase whose TTFTs are the given ones, in order."""
    found = []
    count = len(seconds) // PER_BLOCK
    for number in range(count):
        times = seconds[number * PER_BLOCK : (number + 1) * PER_BLOCK]
        phases = []
        for phase in measurement.phases:
            samples = phase.samples
            if phase.name == "restored":
                samples = tuple(
                    dataclasses.replace(
                        s, first_token_at_seconds=s.sent_at_seconds + t, last_token_at_seconds=s.sent_at_seconds + 2 * t
                    )
                    for s, t in zip(sorted(samples, key=lambda s: s.index), times, strict=True)
                )
            phases.append(dataclasses.replace(phase, samples=samples))
        one = dataclasses.replace(
            measurement,
            arm=name,
            phases=tuple(phases),
            workload=dataclasses.replace(measurement.workload, seed=number),
        )
        found.append(Block(block=number, boot=number * boots // count, measurement=one))
    return found
