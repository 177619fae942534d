"""Why LMCache found nothing again: what its configuration says before any meter does."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_kvoffload.metrics.query import total
from pytest_kvoffload.records import Measurement
from pytest_kvoffload.workload.chunks import extra_config

_IN_PROCESS = ("LMCacheConnectorV1", "KVOffloadLMCacheConnector")
_UNSEEDED = (None, "", "random")
_NOT_STORED = "lmcache_mp_l1_allocation_failure_chunks_total"
_NOT_LOADED = "lmcache_mp_l2_prefetch_failure_chunks_total"
_STORED: Mapping[str, str] = {
    "LMCacheMPConnector": "lmcache_mp_l1_write_chunks_total",
    **dict.fromkeys(_IN_PROCESS, "lmcache:num_stored_tokens_total"),
}


def lmcache_causes(measurement: Measurement, *, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return what is known of LMCache that makes hits impossible or fewer; empty for other connectors.

    Args:
        measurement: of a server that was booted by us; an attached one does not tell its environment.
        environ: what the server inherited beside what was set for it.
    """
    server = measurement.server
    name = (server.kv_transfer_config or {}).get("kv_connector")
    if full := _full_l1(measurement):
        return full
    if not server.command:
        return ()
    if name in _IN_PROCESS:
        return _in_process(measurement, {**environ, **server.environment})
    if (
        name == "LMCacheMPConnector"
        and measurement.plan.mode == "restart"
        and extra_config(server).get("lmcache.mp.autostart")
    ):
        return (
            "the LMCache server was started by vLLM (autostart), so its memory went with the restart: "
            "server = 'managed' keeps it",
        )
    return ()


def lmcache_found_nothing(measurement: Measurement) -> tuple[str, ...]:
    """Say of an LMCache without a hit whether it stored anything; empty for other connectors.

    vLLM counts no store of LMCache's: its own counters do, on the server's port in MP mode, beside vLLM's otherwise.
    """
    name = (measurement.server.kv_transfer_config or {}).get("kv_connector")
    counter = _STORED.get(str(name))
    if counter is None:
        return ()
    stored = [value for phase in measurement.phases if (value := total(phase.delta, counter)) is not None]
    if not stored:
        return (f"whether LMCache stored anything is not known: {counter} is not among the metrics that were read",)
    if sum(stored) > 0:
        return (
            f"LMCache stored ({counter}: {sum(stored):g}) and found nothing again: is the tier larger than the working "
            "set (an LRU that is too small evicts everything before it is asked for), and are the keys the same?",
        )
    return ("LMCache stored nothing: its chunks may be longer than the prompts (chunk_size), or the tier too small",)


def _full_l1(measurement: Measurement) -> tuple[str, ...]:
    """Say that L1 was full: LMCache evicts once a second only (storage_controllers/eviction_controller.py, 0.5.6).

    A store that finds no room is dropped whole, and L2 is written from L1, so it lacks it too; a load from L2 that
    finds none is a miss.
    """
    refused = sum(total(phase.delta, _NOT_STORED) or 0.0 for phase in measurement.phases)
    unread = sum(total(phase.delta, _NOT_LOADED, {"reason": "l1_oom"}) or 0.0 for phase in measurement.phases)
    if refused + unread == 0:
        return ()
    return (
        f"LMCache's L1 was full: {refused:g} chunks found no room and were stored nowhere, L2 included, and {unread:g} "
        "could not be read back from L2; it evicts once a second, a fifth of what is in use above 80%, so it needs "
        "room for what comes within a second: raise l1_size_gb, or evict earlier and more (server_args = "
        "['--eviction-trigger-watermark', '0.3', '--eviction-ratio', '0.7'])",
    )


def _in_process(measurement: Measurement, environment: Mapping[str, str]) -> tuple[str, ...]:
    found = []
    builtin = environment.get("LMCACHE_PRE_CACHING_HASH_ALGORITHM", "builtin") == "builtin"
    if builtin and environment.get("PYTHONHASHSEED") in _UNSEEDED:
        found.append(
            "LMCache's keys are Python's own hash and PYTHONHASHSEED is not fixed: scheduler, workers and other "
            "servers each make other keys, and nothing is ever found again; set PYTHONHASHSEED=0 (hash_seed = 0)"
        )
    if measurement.plan.mode == "restart" and not environment.get("LMCACHE_REMOTE_URL"):
        found.append(
            "LMCache's in-process memory ends with vLLM, and so does the index of its local disk (the files stay, "
            "unused): only a remote store or MP mode outlives a restart"
        )
    return tuple(found)
