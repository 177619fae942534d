"""Assertions on what a server takes from its host, over time and after its end."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kvoffload.assertions.failure import MeterAssertionError
from pytest_kvoffload.records import ResourceSnapshot
from pytest_kvoffload.stats import quantile

__tracebackhide__ = True  # pytest shows the line of the test, not ours

MINIMUM_SNAPSHOTS = 6
"""Two in each third: fewer cannot tell growth from a first touch."""


def assert_no_growth(
    snapshots: Sequence[ResourceSnapshot],
    *,
    memory_bytes: float = 64 * 2**20,
    shm_bytes: float = 0.0,
) -> None:
    """Assert that host memory and /dev/shm do not grow over a soak.

    Compares the median of the last third of the snapshots with that of the first third, so take the first one when the
    server is warm: pools fill once, and that is no leak.

    Args:
        snapshots: at least six, in order, over equal traffic.
        memory_bytes: growth of memory that is allowed.
        shm_bytes: growth of /dev/shm that is allowed.

    Raises:
        MeterAssertionError: ``violated``, or ``too-few-samples``.
    """
    if len(snapshots) < MINIMUM_SNAPSHOTS:
        raise MeterAssertionError(
            assertion="assert_no_growth",
            outcome="too-few-samples",
            message=f"{len(snapshots)} snapshots cannot show growth: at least {MINIMUM_SNAPSHOTS} are needed",
        )
    third = len(snapshots) // 3
    seconds = snapshots[-1].taken_at_seconds - snapshots[0].taken_at_seconds
    for what, limit, values in (
        ("host memory", memory_bytes, [snapshot.memory_bytes for snapshot in snapshots]),
        ("/dev/shm", shm_bytes, [snapshot.shm_bytes for snapshot in snapshots]),
    ):
        early, late = quantile(values[:third], 0.5), quantile(values[-third:], 0.5)
        if late - early <= limit:
            continue
        raise MeterAssertionError(
            assertion="assert_no_growth",
            outcome="violated",
            message=f"{what} grew by {late - early:,.0f} bytes in {seconds:.0f} s, allowed are {limit:,.0f}",
            evidence={
                "first third": f"{early:,.0f} bytes (median of {third})",
                "last third": f"{late:,.0f} bytes (median of {third})",
                "n": f"{len(snapshots)} snapshots over {seconds:.0f} s",
                "threshold": f"<= {limit:,.0f} bytes",
                "new files": ", ".join(sorted(set(snapshots[-1].shm_files) - set(snapshots[0].shm_files))) or "none",
            },
        )


def assert_nothing_left_behind(before: ResourceSnapshot, after: ResourceSnapshot) -> None:
    """Assert that a stopped server left neither a process nor a file in /dev/shm.

    Args:
        before: taken before the server booted.
        after: taken after it was stopped, with ``since=`` a snapshot from while it ran.

    Raises:
        MeterAssertionError: ``violated``, with the names of what is left.
    """
    files = sorted(set(after.shm_files) - set(before.shm_files))
    if not after.processes and not files:
        return
    left = [*(f"process {name}" for name in after.processes), *(f"/dev/shm/{name}" for name in files)]
    raise MeterAssertionError(
        assertion="assert_nothing_left_behind",
        outcome="violated",
        message=f"the stopped server left {len(after.processes)} processes and {len(files)} files in /dev/shm behind",
        evidence={"left": "; ".join(left), "size": f"{max(0, after.shm_bytes - before.shm_bytes)} bytes in /dev/shm"},
        advice=("kvoffload doctor lists what killed servers left in /dev/shm",),
    )
