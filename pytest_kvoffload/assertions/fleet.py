"""Several replicas: which of them hit, and why a revisit misses on another one."""

from __future__ import annotations

from pytest_kvoffload.assertions.evidence import number
from pytest_kvoffload.metrics.hit_rate import HitRate, hit_rate
from pytest_kvoffload.metrics.meters import Meters, read_meters
from pytest_kvoffload.metrics.replicas import of_replica, replicas
from pytest_kvoffload.records import Measurement, PhaseResult
from pytest_kvoffload.workload.chunks import extra_config

_PRIVATE = frozenset({"OffloadingConnector", "SimpleCPUOffloadConnector"})
"""Connectors whose tier lies in the engine's own process (without tiers below it)."""
_EVEN = 0.8
"""A replica whose hit rate is below this share of the best one's counts as missing."""


def has_private_tiers(measurement: Measurement) -> bool:
    """Whether each replica's tier is its own, so that no other can restore from it."""
    config = measurement.server.kv_transfer_config or {}
    return config.get("kv_connector") in _PRIVATE and not extra_config(measurement.server).get("secondary_tiers")


def why_replicas_miss(measurement: Measurement, phase: PhaseResult) -> tuple[str, ...]:
    """Return what the replicas' meters say about missing hits; empty with one replica, or where all hit alike."""
    found = replicas(phase.delta)
    if len(found) < 2:
        return ()
    version = measurement.server.vllm_version
    meters = {one.name: read_meters(of_replica(phase.delta, one), vllm_version=version) for one in found}
    rates = {name: hit_rate(one, "external") for name, one in meters.items()}
    known = {name: rate for name, rate in rates.items() if isinstance(rate, HitRate)}
    if not known:
        return ()
    best = max(rate.rate for rate in known.values())
    hitting = [name for name, rate in known.items() if rate.rate > 0 and rate.rate >= _EVEN * best]
    stored = {one.name: _stored(measurement, one.name) for one in found}
    if len(hitting) == len(found) or not any(stored.values()):
        return ()
    parts = [f"replica {name}: {_words(meters[name])}, {number(stored[name])} bytes stored" for name in rates]
    head = f"hits on replica {', '.join(hitting)} only" if hitting else "no replica hits"
    told = f"{head} ({'; '.join(parts)})"
    if has_private_tiers(measurement):
        return (
            f"{told}: each of the {len(found)} replicas has a tier of its own, so a prefix that one stored is "
            "recomputed when its revisit is routed to another. Route by prefix or session (vllm-router --policy "
            "cache_aware or consistent_hash, vLLM's header X-data-parallel-rank), or give them one tier",
        )
    return (
        f"{told}: if the tier is one for all replicas, do their keys agree (PYTHONHASHSEED, hash algorithm, block "
        "size), and do they use the same directory, bucket or server?",
    )


def replica_rows(measurement: Measurement, phase: PhaseResult, tier: str | None) -> dict[str, str]:
    """Return one row of evidence for each replica; none with one replica."""
    found = replicas(phase.delta)
    if len(found) < 2:
        return {}
    version = measurement.server.vllm_version
    return {
        f"replica {one.name}": str(hit_rate(read_meters(of_replica(phase.delta, one), vllm_version=version), tier))
        for one in found
    }


def _words(meters: Meters) -> str:
    prompt, hits = meters.prompt_tokens.value or 0.0, meters.hit_tokens["external"].value or 0.0
    if not prompt:
        return "no prompt"
    return f"{number(hits)} of {number(prompt)} prompt tokens from its tier"


def _stored(measurement: Measurement, name: str) -> float:
    """Return the bytes that a replica stored over all phases."""
    stored = 0.0
    for phase in measurement.phases:
        for one in replicas(phase.delta):
            if one.name == name:
                meters = read_meters(of_replica(phase.delta, one), vllm_version=measurement.server.vllm_version)
                stored += meters.store_bytes.value or 0.0
    return stored
