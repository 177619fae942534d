"""Causes that lie in a tier outside the server's process: keys that nobody else makes, and answers that come late."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from pytest_kvoffload.metrics.meters import SCHEDULER, Meters
from pytest_kvoffload.records import Measurement
from pytest_kvoffload.workload.chunks import extra_config

SLOW_SHARE = 0.3
"""Share of the median time to first token from which on waiting for a tier is a cause worth naming."""


def why_keys_differ(measurement: Measurement, meters: Meters) -> list[str]:
    """Return why a tier that outlived its writer, or is shared, may have no key of this server's."""
    server = measurement.server
    extra = extra_config(server)
    if measurement.plan.mode not in ("restart", "shared"):
        return []
    found = []
    algorithm = meters.cache_config.get("prefix_caching_hash_algo", "sha256")
    random = _before(server.vllm_version, "0.29") or algorithm.startswith("xxhash")
    if extra.get("secondary_tiers") and random and "PYTHONHASHSEED" not in server.environment:
        found.append(
            f"hash seed: vLLM {server.vllm_version} with {algorithm} begins its block hashes with PYTHONHASHSEED, or, "
            "as here, with random bytes where that is not set (versions before 0.29, and xxhash in all): no two server "
            "processes make the same keys, so nothing in the tier can be found again. Set PYTHONHASHSEED, the same "
            "for all, in [engine] env"
        )
    if extra.get("shared_storage_path") and "shared_storage_path" not in measurement.connector.options:
        found.append(
            "the tier's directory was made for one boot and is removed with it: name one in shared_storage_path"
        )
    elif extra.get("secondary_tiers"):
        found.append(
            "a tier's keys depend on model, dtype, block size, chunk (blocks_per_chunk), parallel layout and cache "
            "salt: were they the same where it was written?"
        )
    return found


def why_lookups_wait(meters: Meters, requests: int, middle: float | None) -> list[str]:
    """Say how long a request waits for its tier to answer, where that is a good part of its time to first token.

    Args:
        meters: of the phase.
        requests: of the phase.
        middle: the median time to first token, seconds.
    """
    waits = meters.lookup_async.get(SCHEDULER)
    if not middle or waits is None or waits.histogram is None or waits.count == 0:
        return []
    wait = waits.histogram.sum / max(1, requests)
    if wait < SLOW_SHARE * middle:
        return []
    slowest = slowest_tier(meters)
    told = "" if slowest is None else f" (tier {slowest[0]}: {slowest[1]:.4f} s a lookup)"
    return [
        f"the lookup delay: a request waits {wait:.4f} s until the tier has answered and fetched{told}, "
        f"{min(wait / middle, 1):.0%} of the median time to first token, and that eats what the hits save"
    ]


def slowest_tier(meters: Meters) -> tuple[str, float] | None:
    """Return the tier with the longest mean lookup, and that mean in seconds; ``None`` where none tells."""
    means = {
        tier: reading.histogram.mean or 0.0
        for tier, reading in meters.lookup_async.items()
        if tier != SCHEDULER and reading.histogram is not None and reading.count > 0
    }
    return max(means.items(), key=lambda item: item[1], default=None)


def _before(version: str | None, bound: str) -> bool:
    try:
        return version is not None and Version(version) < Version(bound)
    except InvalidVersion:
        return False
