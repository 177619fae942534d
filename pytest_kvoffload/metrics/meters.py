"""The meters of a window: what was asked, what each tier answered, what it cost.

Every value is a reading: a number, or ``None`` and the reason. Hit rates are over *prompt tokens*, not over the queries
of a cache: vLLM's external queries leave out what the device had, and vLLM 0.26 counts device queries again for each
retry. Both counters are therefore never used as a denominator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_kvoffload.metrics import query
from pytest_kvoffload.metrics.prefill import PrefillCost, prefill_cost
from pytest_kvoffload.metrics.readings import HistogramReading, Reading, counter, gauge, histogram
from pytest_kvoffload.records import Delta

BY_SOURCE = "vllm:prompt_tokens_by_source_total"
CACHED_BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
TTFT = "vllm:time_to_first_token_seconds"
SCHEDULER = "scheduler"
"""Key of the lookup delays that the connector itself measures, beside one key a tier (``0:primary``, ``1:fs``)."""
ALL_TIERS = "all tiers"
"""Key of tier lookup delays in vLLM 0.26 and 0.27, which do not label them."""

TIERS = ("device", "external", "host", "disk", "p2p", "external_unspecified")
_LMCACHE_TIERS = {
    "lmcache_l1": "lmcache_mp_lookup_hit_l1_tokens_total",
    "lmcache_l2": "lmcache_mp_lookup_hit_l2_tokens_total",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierIO:
    """Traffic between the host tier and one secondary tier (vLLM 0.28 and later)."""

    read_bytes: Reading
    read_seconds: Reading
    write_bytes: Reading
    write_seconds: Reading
    chunk_queries: Reading
    chunk_hits: Reading
    promotion_failures: Reading
    cascade_failures: Reading

    @property
    def read_bandwidth(self) -> Reading:
        """Bytes per second of transfer time."""
        return self.read_bytes.per(self.read_seconds, unit="bytes/s")

    @property
    def write_bandwidth(self) -> Reading:
        """Bytes per second of transfer time."""
        return self.write_bytes.per(self.write_seconds, unit="bytes/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMeters:
    """The hit meters of one engine (one data-parallel rank of one endpoint)."""

    endpoint: str
    engine: str
    prompt_tokens: Reading
    device_hit_tokens: Reading
    external_hit_tokens: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """Everything that a window of server metrics says about the cache and its tiers."""

    vllm_version: str | None
    seconds: float
    prompt_tokens: Reading
    """The denominator of every hit rate."""
    local_compute_tokens: Reading
    hit_tokens: Mapping[str, Reading]
    """By tier: ``device``, ``external`` (everything through the connector), and the external ones told apart: ``host``,
    ``disk``, ``p2p``, ``external_unspecified`` (from vLLM 0.32), ``lmcache_l1`` and ``lmcache_l2`` where an LMCache
    server's metrics are among the endpoints."""
    store_bytes: Reading
    store_seconds: Reading
    load_bytes: Reading
    load_seconds: Reading
    allocation_failures: Reading
    stores_skipped: Reading
    preemptions: Reading
    lookup_sync: Mapping[str, HistogramReading]
    lookup_async: Mapping[str, HistogramReading]
    ttft: HistogramReading
    prefill: HistogramReading
    queue: HistogramReading
    prefill_cost: PrefillCost | None
    running_requests: Reading
    waiting_requests: Reading
    device_cache_usage: Reading
    tiers: Mapping[str, TierIO] = field(default_factory=dict)
    engines: tuple[EngineMeters, ...] = ()
    connector: str | None = None
    """What the declared metrics show of a KV connector, in words; ``None`` when they show none."""
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """Labels of ``vllm:cache_config_info`` of the first engine, verbatim."""
    tier_config: Mapping[str, str] = field(default_factory=dict)
    """Labels of ``vllm:kv_offload_config_info`` (vLLM 0.33 and later)."""
    caveats: tuple[str, ...] = ()
    """Why the numbers may be less than what happened: resets, restarts, series that vanished."""

    @property
    def store_bandwidth(self) -> Reading:
        """Device to tier, bytes per second of transfer time (transfers may overlap)."""
        return self.store_bytes.per(self.store_seconds, unit="bytes/s")

    @property
    def load_bandwidth(self) -> Reading:
        """Tier to device, bytes per second of transfer time (transfers may overlap)."""
        return self.load_bytes.per(self.load_seconds, unit="bytes/s")

    @property
    def block_size_tokens(self) -> int | None:
        """Tokens in a block of the device cache."""
        return _int(self.cache_config.get("block_size"))

    @property
    def device_cache_tokens(self) -> int | None:
        """Capacity of one engine's device cache, from blocks and block size.

        vLLM shows the blocks of all data parallel ranks of an endpoint together (v1/engine/core_client.py).
        """
        blocks, size = _int(self.cache_config.get("num_gpu_blocks")), self.block_size_tokens
        ranks = sum(one.endpoint == self.cache_config.get("endpoint", "") for one in self.engines)
        return blocks // max(1, ranks) * size if blocks is not None and size is not None else None


def read_meters(delta: Delta, *, vllm_version: str | None, prompt_tokens: int | None = None) -> Meters:
    """Read the meters of a delta.

    Args:
        delta: two scrapes compared.
        vllm_version: as ``/version`` says; sharpens the reasons of what is absent. ``None`` when unknown.
        prompt_tokens: what the client sent in the window, where it is known; it then is the denominator. Without it
            the server's own count is (prompts whose first token came out in the window).

    Returns:
        The meters. Nothing is raised for what is absent: each reading says so itself.
    """

    def read(name: str, **labels: str) -> Reading:
        return counter(delta, name, vllm_version, labels or None)

    def observed(name: str, **labels: str) -> HistogramReading:
        return histogram(delta, name, vllm_version, labels or None)

    counted = read(PROMPT_TOKENS)
    denominator = counted
    if prompt_tokens is not None:
        denominator = Reading(value=float(prompt_tokens), metric="prompt tokens sent by the client", unit="tokens")
    return Meters(
        vllm_version=vllm_version,
        seconds=delta.seconds,
        prompt_tokens=denominator,
        local_compute_tokens=read(BY_SOURCE, source="local_compute"),
        hit_tokens=_hit_tokens(delta, vllm_version),
        store_bytes=read("vllm:kv_offload_store_bytes_total"),
        store_seconds=read("vllm:kv_offload_store_time_total"),
        load_bytes=read("vllm:kv_offload_load_bytes_total"),
        load_seconds=read("vllm:kv_offload_load_time_total"),
        allocation_failures=read("vllm:kv_offload_allocation_failure_total"),
        stores_skipped=read("vllm:kv_offload_stores_skipped_total"),
        preemptions=read("vllm:num_preemptions_total"),
        lookup_sync=_lookups(delta, "sync", vllm_version),
        lookup_async=_lookups(delta, "async", vllm_version),
        ttft=observed(TTFT),
        prefill=observed("vllm:request_prefill_time_seconds"),
        queue=observed("vllm:request_queue_time_seconds"),
        prefill_cost=prefill_cost(delta),
        running_requests=gauge(delta, "vllm:num_requests_running", vllm_version),
        waiting_requests=gauge(delta, "vllm:num_requests_waiting", vllm_version),
        device_cache_usage=gauge(delta, "vllm:kv_cache_usage_perc", vllm_version),
        tiers=_tiers(delta, vllm_version),
        engines=_engines(delta, vllm_version),
        connector=_connector(delta),
        cache_config=_info(delta, "vllm:cache_config_info"),
        tier_config=_info(delta, "vllm:kv_offload_config_info"),
        caveats=_caveats(delta, counted, prompt_tokens),
    )


def _hit_tokens(delta: Delta, version: str | None, labels: Mapping[str, str] | None = None) -> dict[str, Reading]:
    extra = dict(labels or {})
    hits = {
        "device": counter(delta, BY_SOURCE, version, {"source": "local_cache_hit", **extra}),
        "external": counter(delta, BY_SOURCE, version, {"source": "external_kv_transfer", **extra}),
    }
    for tier in TIERS[2:]:
        hits[tier] = counter(delta, CACHED_BY_SOURCE, version, {"source": tier, **extra})
    for tier, name in _LMCACHE_TIERS.items():
        if query.declared(delta, name):
            hits[tier] = counter(delta, name, version, extra or None)
    return hits


def _lookups(delta: Delta, how: str, version: str | None) -> dict[str, HistogramReading]:
    found = {SCHEDULER: histogram(delta, f"vllm:kv_offload_lookup_{how}_delay_seconds", version)}
    name = f"vllm:kv_offload_tiering_lookup_{how}_delay_seconds"
    if query.declared(delta, name):
        tiers = query.label_values(delta, f"{name}_count", "tier")
        if not tiers:
            found[ALL_TIERS] = histogram(delta, name, version)
        for tier in tiers:
            found[tier] = histogram(delta, name, version, {"tier": tier})
    return found


def _tiers(delta: Delta, version: str | None) -> dict[str, TierIO]:
    prefix = "vllm:kv_offload_tiering_"
    names = sorted(
        {
            sample.labels["tier"]
            for sample in delta.samples
            if sample.name.startswith(prefix) and not sample.labels.get("tier", "0:").startswith("0:")
        }
    )

    def read(name: str, tier: str) -> Reading:
        reading = counter(delta, f"{prefix}{name}_total", version, {"tier": tier})
        if reading.value is None and query.declared(delta, f"{prefix}{name}_total"):
            # Another tier has moved already, this one has not: its series comes with its first use.
            return Reading(value=0.0, metric=reading.metric, unit=reading.unit)
        return reading

    return {
        tier: TierIO(
            read_bytes=read("read_bytes", tier),
            read_seconds=read("read_time", tier),
            write_bytes=read("write_bytes", tier),
            write_seconds=read("write_time", tier),
            chunk_queries=read("chunk_queries", tier),
            chunk_hits=read("chunk_hits", tier),
            promotion_failures=read("promotion_job_failures", tier),
            cascade_failures=read("cascade_job_failures", tier),
        )
        for tier in names
    }


def _engines(delta: Delta, version: str | None) -> tuple[EngineMeters, ...]:
    places = sorted(
        {(s.labels.get("endpoint", ""), s.labels.get("engine", "")) for s in query.series(delta, PROMPT_TOKENS)}
    )
    found = []
    for endpoint, engine in places:
        labels = {key: value for key, value in (("endpoint", endpoint), ("engine", engine)) if value}
        found.append(
            EngineMeters(
                endpoint=endpoint,
                engine=engine,
                prompt_tokens=counter(delta, PROMPT_TOKENS, version, labels),
                device_hit_tokens=counter(delta, BY_SOURCE, version, {"source": "local_cache_hit", **labels}),
                external_hit_tokens=counter(delta, BY_SOURCE, version, {"source": "external_kv_transfer", **labels}),
            )
        )
    return tuple(found)


def _connector(delta: Delta) -> str | None:
    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in delta.families)

    if has("vllm:kv_offload_tiering_"):
        return "OffloadingConnector with tiers"
    if has("vllm:kv_offload_"):
        return "OffloadingConnector"
    if has("vllm:simple_kv_offload_"):
        return "SimpleCPUOffloadConnector"
    if has("vllm:lmcache_mp_"):
        return "LMCacheMPConnector"
    if has("lmcache:"):
        return "LMCacheConnectorV1"
    if query.declared(delta, "vllm:num_requests_kv_fetch_by_stage"):
        return "a KV connector that exposes no metrics of its own"
    return None


def _info(delta: Delta, name: str) -> dict[str, str]:
    found = query.series(delta, name)
    return dict(found[0].labels) if found else {}


def _caveats(delta: Delta, counted: Reading, sent: int | None) -> tuple[str, ...]:
    texts = []
    for endpoint in delta.restarts:
        texts.append(
            f"the process behind {endpoint} was replaced in the window (or a load balancer answers for several "
            "servers): what happened before is lost, the counts are lower bounds"
        )
    if delta.resets:
        texts.append(
            f"{len(delta.resets)} counters went back in the window, the counts are lower bounds: " + _some(delta.resets)
        )
    lost = [name for name in delta.vanished if name.startswith(("vllm:", "lmcache"))]
    if lost and not delta.restarts:
        texts.append(f"{len(lost)} series vanished in the window: {_some(lost)}")
    if sent is not None and counted.value is not None and abs(counted.value - sent) > 0.01 * max(sent, 1):
        texts.append(
            f"the client sent {sent} prompt tokens, the server counted {counted.value:g} in the window: other traffic, "
            "or requests in flight at its edges"
        )
    return tuple(texts)


def _some(items: tuple[str, ...] | list[str]) -> str:
    shown = ", ".join(items[:3])
    return shown if len(items) <= 3 else f"{shown} and {len(items) - 3} more"


def _int(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
