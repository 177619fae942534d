"""What every mode builds its plan with."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_kvoffload.records import PlanSummary, RequestSpec, ServerInfo, WorkloadConfig
from pytest_kvoffload.workload.plan import Geometry, PlannedPhase, Preparation
from pytest_kvoffload.workload.prompts import SessionWriter, with_arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a mode works from, and the few things that all modes do alike."""

    workload: WorkloadConfig
    info: ServerInfo
    sizes: Geometry
    writer: SessionWriter

    def cycle(self, sessions: int, turns: range, *, repeats: int = 1, family: str = "") -> tuple[RequestSpec, ...]:
        """Visit every session once a turn, turn after turn: the order in which an LRU cache holds nothing useful."""
        order = [(turn, session) for _ in range(repeats) for turn in turns for session in range(sessions)]
        return tuple(
            self.writer.request(index=index, session=session, turn=turn, family=family)
            for index, (turn, session) in enumerate(order)
        )

    def phase(
        self,
        name: str,
        requests: tuple[RequestSpec, ...],
        preparation: Preparation,
        *,
        concurrency: int | None = None,
        rate: bool = True,
    ) -> PlannedPhase:
        """Put requests into a phase; with a rate, give them arrival times."""
        key = f"{self.workload.seed}/arrivals/{name}"
        timed = with_arrivals(requests, rate_per_second=self.workload.rate_per_second if rate else None, key=key)
        return PlannedPhase(
            name=name,
            requests=timed,
            preparation=preparation,
            concurrency=concurrency or self.workload.concurrency,
        )

    def summary(self, sessions: int, explanation: str, *, turns: int | None = None) -> PlanSummary:
        """Sum the plan up for the measurement."""
        return PlanSummary(
            mode=self.workload.mode,
            seed=self.workload.seed,
            sessions=sessions,
            turns=self.workload.turns if turns is None else turns,
            working_set_tokens=self.sizes.working_set_tokens(sessions),
            device_cache_tokens=self.sizes.device_tokens,
            block_size_tokens=self.info.block_size_tokens,
            evicts=self.sizes.evicts(sessions),
            explanation=explanation,
            tier_tokens=self.sizes.tier_tokens,
        )
