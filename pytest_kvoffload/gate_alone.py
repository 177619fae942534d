"""One arm measured boot after boot as the gate would: what a calibration and a baseline rest on."""

from __future__ import annotations

import dataclasses
import math

from pytest_kvoffload.gate.pace import Pace, Place, Watch
from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.gate.schedule import schedule_of
from pytest_kvoffload.gate_run import GatePlan, per_block_of, unwatched, warm_up_of, workload_of
from pytest_kvoffload.session import RunSession


def measure_runs(
    session: RunSession, plan: GatePlan, *, boots: int, fewest: int = 1, watch: Watch = unwatched
) -> list[list[Block]]:
    """Measure the candidate over several boots, the same requests in each: A against A.

    Each boot replays as many requests as an arm of the gate would get in one boot, ``fewest`` at least.
    """
    alone = _Alone(session, plan, "calibration", watch)
    alone.take(0, 0)
    blocks = math.ceil(max(plan.requests / plan.boots, fewest) / alone.per_block)
    alone.expect(turns=boots * blocks, boots=boots)
    for boot in range(boots):
        for number in range(blocks):
            if (boot, number) != (0, 0):
                alone.take(number, boot)
        session.stop_servers()
    return [[block for block in alone.blocks if block.boot == boot] for boot in range(boots)]


def measure_arm(session: RunSession, plan: GatePlan, *, watch: Watch = unwatched) -> list[Block]:
    """Measure the candidate alone, in the blocks and boots of a gate run: what a baseline records."""
    alone = _Alone(session, plan, "baseline", watch)
    alone.take(0, 0)
    schedule = schedule_of(math.ceil(plan.requests / alone.per_block), plan.boots)
    alone.expect(turns=sum(map(len, schedule)), boots=len(schedule))
    for boot, numbers in enumerate(schedule):
        for number in numbers:
            if number > 0:
                alone.take(number, boot)
        session.stop_servers()
    return alone.blocks


class _Alone:
    """Measures one arm, boot after boot."""

    def __init__(self, session: RunSession, plan: GatePlan, label: str, watch: Watch) -> None:
        self._session, self._plan, self._watch, self._pace = session, plan, watch, Pace()
        self._arm = dataclasses.replace(plan.candidate, label=label)
        self._expected: tuple[int, int] | None = None
        self.blocks: list[Block] = []

    @property
    def per_block(self) -> int:
        """Requests of the judged phase in one block."""
        return per_block_of(self._plan, self.blocks[0])

    def expect(self, *, turns: int, boots: int) -> None:
        """Say how much there is to do."""
        self._expected = turns, boots
        self._pace.expect(turns=turns, boots=2 * boots)

    def take(self, number: int, boot: int) -> None:
        """Measure one block."""
        turns, boots = self._expected or (None, None)
        per_block = self.per_block if self.blocks else 0
        self._watch(
            Place(
                arm=f"boot {boot + 1} of {boots}" if boots else f"boot {boot + 1}",
                block=len(self.blocks) + 1,
                blocks=turns,
                done=len(self.blocks) * per_block,
                requests=None if turns is None else turns * per_block,
                seconds_left=self._pace.seconds_left,
            )
        )
        arm = dataclasses.replace(self._arm, boot=boot)
        if not self.blocks or self.blocks[-1].boot != boot:
            with self._pace.boot():
                self._session.ready(arm)
            with self._pace.boot():
                self._session.warm_up(arm, warm_up_of(self._plan))
        with self._pace.turn():
            measured = self._session.measure(arm, workload_of(self._plan, number))
        self.blocks.append(Block(block=number, boot=boot, measurement=measured))
