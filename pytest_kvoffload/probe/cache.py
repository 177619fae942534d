"""Between two phases: wait until nothing moves any more, then forget what the device holds.

Stores are submitted at the start of the engine's next step and go on after the last answer, so a scrape or a reset
taken at once would miss them. ``/reset_prefix_cache`` answers HTTP 200 with ``{"success": false}`` while blocks are
held; only the body says whether anything was reset.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from pytest_kvoffload.errors import WorkloadError
from pytest_kvoffload.metrics.scrape import scrape
from pytest_kvoffload.records import ServerInfo, Snapshot
from pytest_kvoffload.workload.http import post

_Counters = dict[tuple[str, tuple[tuple[str, str], ...]], float]

RUNNING = ("vllm:num_requests_running", "vllm:num_requests_waiting")
SETTLE_TIMEOUT_SECONDS = 60.0
RESET_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.15
QUIET_POLLS = 3
"""Consecutive polls in which no transfer counter moved."""
STALE_GAUGE_SECONDS = 5.0
"""How long a gauge may claim that a transfer is in flight while no counter moves: gauges are written by the engine's
steps only, so the last one may stand for ever."""
IN_FLIGHT = (
    "vllm:kv_offload_cpu_cache_write_usage_perc",
    "vllm:kv_offload_tiering_active_cascade_jobs",
    "vllm:kv_offload_tiering_active_promotion_jobs",
    "vllm:kv_offload_tiering_primary_write_usage_perc",
    "vllm:simple_kv_offload_pending_store_blocks",
)

_TRANSFER = re.compile(r"(kv_offload|kvoffload|lmcache|nixl|external_kv).*(byte|store|write|save|load|read|job|chunk)")


def transfer_counters(snapshot: Snapshot) -> _Counters:
    """Return every counter that moves while KV is on its way to or from a tier."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for sample in snapshot.samples
        if (sample.kind == "counter" or sample.name.endswith("_total")) and _TRANSFER.search(sample.name)
    }


def running_requests(snapshot: Snapshot) -> float:
    """Return how many requests the server runs or queues; 0 where it does not tell."""
    return sum(sample.value for sample in snapshot.samples if sample.name in RUNNING)


def _moved(before: _Counters | None, now: _Counters) -> list[str]:
    return [] if before is None else sorted({key[0] for key, value in now.items() if value != before.get(key)})


def settle(info: ServerInfo, *, check: Callable[[], None], timeout_seconds: float = SETTLE_TIMEOUT_SECONDS) -> Snapshot:
    """Wait until no request runs and no transfer counter moves; return the scrape that showed it.

    Args:
        info: whose metrics to read.
        check: raises when the server has died.
        timeout_seconds: when to give up.

    Raises:
        WorkloadError: it never became quiet; the text says what was still moving.
        ScrapeError: the metrics could not be read.
        ServerDiedError: from ``check``.
    """
    deadline = time.monotonic() + timeout_seconds
    before: _Counters | None = None
    quiet, quiet_since = 0, time.monotonic()
    while True:
        check()
        snapshot = scrape(info.metrics_urls)
        counters, running = transfer_counters(snapshot), running_requests(snapshot)
        moved = _moved(before, counters)
        if before is not None and not moved and running == 0:
            quiet += 1
        else:
            quiet, quiet_since = 0, time.monotonic()
        in_flight = any(sample.value > 0 for sample in snapshot.samples if sample.name in IN_FLIGHT)
        patience = STALE_GAUGE_SECONDS if in_flight else 0.0
        if quiet >= QUIET_POLLS and time.monotonic() - quiet_since >= patience:
            return snapshot
        if time.monotonic() > deadline:
            still = f"{running:g} requests are still running" if running else "still moving: " + ", ".join(moved)
            raise WorkloadError(
                f"the server did not become quiet within {timeout_seconds:g} s: {still}. "
                "Is other traffic sent to it, or is the tier too slow to store what was asked?"
            )
        before = counters
        time.sleep(POLL_SECONDS)


def reset_prefix_cache(
    info: ServerInfo,
    *,
    external: bool,
    check: Callable[[], None],
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = RESET_TIMEOUT_SECONDS,
) -> int:
    """Reset the device's prefix cache, and the tiers of the connector too when ``external``, on every engine.

    Behind a router each engine is asked itself: a router hands such a request to one of them, and may drop its query.

    Returns:
        How often an engine refused before it did.

    Raises:
        WorkloadError: refused until the time was up, or the endpoint does not exist.
        ServerDiedError: from ``check``.
    """
    return sum(
        _reset_engine(url, external=external, check=check, headers=headers, timeout_seconds=timeout_seconds)
        for url in info.engine_urls or (info.url,)
    )


def _reset_engine(
    engine: str,
    *,
    external: bool,
    check: Callable[[], None],
    headers: Mapping[str, str] | None,
    timeout_seconds: float,
) -> int:
    import requests

    url = f"{engine.rstrip('/')}/reset_prefix_cache"
    params = {"reset_external": "true" if external else "false"}
    deadline = time.monotonic() + timeout_seconds
    refusals, pause = 0, 0.05
    while True:
        check()
        try:
            answer = post(url, params=params, headers=headers, timeout_seconds=timeout_seconds)
        except requests.RequestException as error:
            check()
            raise WorkloadError(f"cannot reset the prefix cache at {url}: {error}") from error
        if answer.status_code == 404:
            raise WorkloadError(f"{url} does not exist: the server runs without VLLM_SERVER_DEV_MODE=1")
        if answer.status_code != 200:
            raise WorkloadError(f"{url} answered HTTP {answer.status_code}: {answer.text[:200]}")
        if _success(answer.text):
            return refusals
        refusals += 1
        if time.monotonic() > deadline:
            raise WorkloadError(
                f"{url} refused {refusals} times within {timeout_seconds:g} s (it answers "
                f"{answer.text[:100]!r}): blocks are held by running requests or by transfers that never end"
            )
        time.sleep(pause)
        pause = min(pause * 2, 1.0)


def _success(body: str) -> bool:
    import json

    try:
        decoded = json.loads(body)
    except ValueError:
        # Before the body had a meaning, an empty 200 was the whole answer.
        return not body.strip()
    return bool(decoded.get("success", True)) if isinstance(decoded, dict) else True
