"""Why a tier gave nothing, or too little: the known causes, told apart by the meters."""

from __future__ import annotations

from pytest_kvoffload.assertions.diagnosis_tiers import why_keys_differ, why_lookups_wait
from pytest_kvoffload.assertions.evidence import number
from pytest_kvoffload.assertions.fleet import why_replicas_miss
from pytest_kvoffload.assertions.lmcache import lmcache_causes, lmcache_found_nothing
from pytest_kvoffload.metrics.meters import Meters, read_meters
from pytest_kvoffload.records import Measurement, PhaseResult
from pytest_kvoffload.workload.chunks import chunk_tokens, extra_config


def why_no_hits(measurement: Measurement, phase: PhaseResult) -> tuple[str, ...]:
    """Return the likely causes of missing hits, most specific first; never empty."""
    version = measurement.server.vllm_version
    meters = read_meters(phase.delta, vllm_version=version)
    earlier = [read_meters(one.delta, vllm_version=version) for one in measurement.phases]
    found: list[str] = []
    if measurement.connector.kind == "recompute":
        found.append("this arm has no connector (recompute): there is no tier to hit")
        return tuple(found)
    if measurement.plan.mode == "no_reuse":
        found.append("the traffic has no reuse: this workload never asks anything twice, so no cache can help")
        return tuple(found)
    external = meters.hit_tokens["external"].value or 0.0
    found += lmcache_causes(measurement)
    if external == 0:
        found += why_keys_differ(measurement, meters)
    found += _room(measurement, earlier)
    found += why_replicas_miss(measurement, phase)
    device = meters.hit_tokens["device"].value or 0.0
    if external == 0 and device > 0:
        found.append(
            "the device still held what was asked, so no tier was needed: use a larger working set, a smaller device "
            "cache (engine.num_gpu_blocks) or a reset"
        )
    if meters.cache_config.get("enable_prefix_caching") == "False":
        found.append("prefix caching is off on this server: remove --no-enable-prefix-caching")
    if not found and external > 0:
        found.append(
            "the tier does serve this phase: more cannot hit than whole chunks of what was asked before; what is "
            "missing beyond that was evicted meanwhile or never stored (offload_prompt_only: generated tokens are not)"
        )
    if not found:
        found += lmcache_found_nothing(measurement)
    if not found:
        found.append(
            "stores happened and nothing was found again: do keys survive (PYTHONHASHSEED and the hash algorithm for "
            "tiers outside the process), is the same model and cache salt used, did the tier evict it meanwhile?"
            if _stored(earlier) > 0
            else "nothing was stored: is the connector the one that was asked for (see the effective configuration in "
            "the measurement), and is its role able to store?"
        )
    return tuple(found)


def why_not_faster(measurement: Measurement, phase: PhaseResult) -> tuple[str, ...]:
    """Return the likely causes of hits that do not shorten the time to first token; never empty."""
    meters = read_meters(phase.delta, vllm_version=measurement.server.vllm_version)
    n = len(phase.samples) or 1
    found: list[str] = []
    load = meters.load_seconds.value
    times = sorted(s.ttft_seconds for s in phase.samples if s.ok and s.ttft_seconds is not None)
    middle = times[len(times) // 2] if times else None
    speed = meters.load_bandwidth.value
    if load and middle:
        share = load / n / middle
        told = f", {speed / 1e9:.3g} GB/s" if speed else ""
        if share >= 0.3:
            found.append(
                f"the interconnect is too slow for this model: loads take {load / n:.4f} s a request{told}, "
                f"{share:.0%} of the median time to first token"
            )
    found += why_lookups_wait(meters, n, middle)
    chunk = chunk_tokens(measurement.server)
    if load and chunk <= 16:
        found.append(f"chunks are small ({chunk} tokens), so a prompt is many small transfers: raise blocks_per_chunk")
    prompt = measurement.workload.prefix_tokens + measurement.workload.suffix_tokens
    if not found:
        found.append(
            f"recomputing {prompt} tokens may simply be as cheap as loading them here: longer prefixes, a larger "
            "model, larger chunks (blocks_per_chunk) or a faster link to the tier are what moves it"
        )
    return tuple(found)


def why_long_tail(measurement: Measurement, phase: PhaseResult) -> tuple[str, ...]:
    """Return the likely causes of a tail that grew; never empty."""
    meters = read_meters(phase.delta, vllm_version=measurement.server.vllm_version)
    found: list[str] = []
    if (meters.preemptions.value or 0) > 0:
        found.append(f"{meters.preemptions.value:g} requests were preempted: fewer at once, or more device blocks")
    waits = [reading for reading in meters.lookup_async.values() if reading.histogram and reading.count > 0]
    if waits:
        slowest = max(reading.histogram.mean or 0.0 for reading in waits if reading.histogram)
        found.append(f"requests waited {slowest:.4f} s on average for lookups in the tier")
    if measurement.workload.concurrency > 1 or measurement.plan.mode == "burst":
        found.append(
            "requests that share a prefix that is being loaded wait for one another (vllm#44294): compare mode 'burst' "
            "on both arms"
        )
    if not found:
        found.append("look at the slowest requests of the measurement: are they the first, or spread over the phase?")
    return tuple(found)


def _room(measurement: Measurement, meters: list[Meters]) -> list[str]:
    """Causes that lie in the size of the tier and of its chunks."""
    refused = sum(one.allocation_failures.value or 0.0 for one in meters)
    stored = _stored(meters)
    chunk = chunk_tokens(measurement.server)
    workload = measurement.workload
    prompt = workload.prefix_tokens + workload.suffix_tokens
    size = extra_config(measurement.server).get("cpu_bytes_to_use")
    found = []
    if refused > 0:
        found.append(
            f"the tier is too small: it refused {number(refused)} stores (a store is all or nothing; cpu_bytes_to_use "
            f"is in bytes{'' if size is None else f', here {size}'})"
        )
    elif stored == 0 and size is not None and str(size).isdigit() and int(size) < 2**20:
        found.append(f"the tier is too small to hold one chunk: cpu_bytes_to_use is {size} bytes")
    if measurement.plan.mode != "replay_log" and chunk > prompt:
        found.append(
            f"chunks are too large: {chunk} tokens, and a prompt has {prompt}; only full chunks are stored, so lower "
            + ("blocks_per_chunk" if measurement.server.chunk_tokens is None else "chunk_size")
        )
    if stored > 0 and size is not None and str(size).isdigit() and stored > int(size) * 0.98:
        found.append(
            f"the tier is too small for this working set: {number(stored)} bytes were stored into {size}, so a "
            "revisit comes after its own eviction"
        )
    return found


def _stored(meters: list[Meters]) -> float:
    return sum(one.store_bytes.value or 0.0 for one in meters)
