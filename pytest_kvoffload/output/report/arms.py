"""The arms of a report: the measurements of one configuration, pooled where they are blocks of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.output.rows import PhaseRow, arm_rows, phases_named
from pytest_kvoffload.records import ConnectorConfig, Measurement, PhaseResult, WorkloadConfig, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportArm:
    """One configuration and all that was measured of it."""

    name: str
    """Harmless, and distinct within the report."""
    blocks: tuple[Measurement, ...]
    """In the order of time; the gate measures an arm in blocks, which differ in nothing but the seed."""

    @property
    def first(self) -> Measurement:
        """The first block: what it says of server and configuration holds for all."""
        return self.blocks[0]

    @property
    def phase_names(self) -> tuple[str, ...]:
        """Names of the phases, in the order they ran."""
        return phases_named(self.blocks)

    def pieces(self, phase: str) -> list[tuple[Measurement, PhaseResult]]:
        """Return the phase of every block that has it."""
        return [(m, p) for m in self.blocks for p in m.phases if p.name == phase]

    def rows(self) -> tuple[PhaseRow, ...]:
        """Return the table's rows of this arm."""
        return arm_rows(self.blocks, arm=self.name)


def pool(measurements: Sequence[Measurement]) -> list[ReportArm]:
    """Return the arms of these measurements, in the order in which they come first.

    Blocks of a gate run (equal in arm, connector, workload, model and vLLM, each with a seed of its own) are one arm.
    A seed that is there already begins another arm of the same name: two runs side by side, or A against A.
    """
    groups: list[list[Measurement]] = []
    latest: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        key = _identity(measurement)
        group = latest.get(key)
        if group is None or measurement.workload.seed in {m.workload.seed for m in group}:
            group = latest[key] = []
            groups.append(group)
        group.append(measurement)
    names = _distinct([group[0].arm for group in groups])
    return [ReportArm(name=name, blocks=tuple(group)) for name, group in zip(names, groups, strict=True)]


def _identity(measurement: Measurement) -> str:
    connector: ConnectorConfig = measurement.connector
    workload: WorkloadConfig = dataclasses.replace(measurement.workload, seed=0)
    server = measurement.server
    return repr((measurement.arm, to_json(connector), workload, server.model, server.engine_kind, server.vllm_version))


def _distinct(arms: Sequence[str]) -> list[str]:
    names: list[str] = []
    for arm in arms:
        base = one_line(arm, 40) or "(no name)"
        count, name = 1, base
        while name in names:
            count += 1
            name = f"{base} #{count}"
        names.append(name)
    return names
