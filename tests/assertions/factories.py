"""Measurements made by hand, with the metric names and the shapes of a real vLLM 0.32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_kvoffload.records import (
    ConnectorConfig,
    Delta,
    DeltaSample,
    Measurement,
    PhaseResult,
    PlanSummary,
    RequestSample,
    ResourceSnapshot,
    SampleKind,
    ServerInfo,
    WorkloadConfig,
)

PROMPT, PREFIX, CHUNK = 165, 160, 16
COUNTERS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "store_bytes": "vllm:kv_offload_store_bytes_total",
    "store_time": "vllm:kv_offload_store_time_total",
    "load_bytes": "vllm:kv_offload_load_bytes_total",
    "load_time": "vllm:kv_offload_load_time_total",
    "failures": "vllm:kv_offload_allocation_failure_total",
}
SYNC = "vllm:kv_offload_lookup_sync_delay_seconds"
TTFT = "vllm:time_to_first_token_seconds"


def samples(
    times: Sequence[float],
    *,
    phase: str = "restored",
    outputs: Sequence[tuple[int, ...]] | None = None,
    error: str | None = None,
    failed: Sequence[int] = (),
) -> tuple[RequestSample, ...]:
    """One request a session, with these times to first token."""
    return tuple(
        RequestSample(
            index=index,
            session=index,
            turn=0,
            phase=phase,
            prompt_tokens=PROMPT,
            prefix_tokens=PREFIX,
            sent_at_seconds=0.0,
            first_token_at_seconds=None if index in failed else time,
            last_token_at_seconds=None if index in failed else time + 0.01,
            output_token_ids=outputs[index] if outputs else (index, 7, 8, 9),
            status=500 if index in failed else 200,
            error=(error or "HTTP 500: boom") if index in failed else None,
        )
        for index, time in enumerate(times)
    )


def histogram(
    name: str, bounds: Mapping[float, float], total: float, labels: Mapping[str, str] | None = None
) -> list[Any]:
    """Rows of a histogram: cumulative counts by bound, the last one being the count."""
    tags = {"engine": "0", **(labels or {})}
    count = max(bounds.values(), default=0.0)
    rows = [(f"{name}_bucket", {**tags, "le": str(bound)}, value) for bound, value in bounds.items()]
    rows.append((f"{name}_bucket", {**tags, "le": "+Inf"}, count))
    rows += [(f"{name}_count", tags, count), (f"{name}_sum", tags, total)]
    return [_row(row, labels, value, "histogram") for row, labels, value in rows]


def _row(name: str, labels: Mapping[str, str], value: float, kind: SampleKind) -> DeltaSample:
    return DeltaSample(name=name, labels=dict(labels), kind=kind, before=0.0, after=value, increment=value)


def delta(
    *,
    device: float | None = 0.0,
    external: float | None = 0.0,
    connector: bool = True,
    rows: Sequence[DeltaSample] = (),
    ttft: tuple[int, float] | None = None,
    **counters: float,
) -> Delta:
    """What the meters did: hit tokens by source, and the named counters.

    ``connector=False`` is a server without one: no offload metric is declared. ``None`` hides a source.
    """
    tags = {"engine": "0", "model_name": "m"}
    found = [_row(COUNTERS[name], tags, value, "counter") for name, value in counters.items()]
    by_source = "vllm:prompt_tokens_by_source_total"
    for source, value in (("local_cache_hit", device), ("external_kv_transfer", external)):
        if value is not None:
            found.append(_row(by_source, {**tags, "source": source}, value, "counter"))
    families: dict[str, SampleKind] = {
        name: "counter" for name in COUNTERS.values() if connector or "offload" not in name
    }
    families |= {TTFT: "histogram"}
    if connector:
        families |= {SYNC: "histogram", SYNC.replace("sync", "async"): "histogram"}
    if ttft is not None:
        found += histogram(TTFT, {1.0: ttft[0]}, ttft[1])
    return Delta(seconds=10.0, samples=(*found, *rows), families=families)


def phase(name: str, times: Sequence[float], meters: Delta | None = None, **how: Any) -> PhaseResult:
    """A phase of one request a session."""
    made = samples(times, phase=name, **how)
    meters = meters or delta(prompt_tokens=PROMPT * len(made))
    return PhaseResult(name=name, samples=made, delta=meters, duration_seconds=10.0)


def measurement(
    *phases: PhaseResult,
    arm: str = "native",
    kind: str = "native",
    mode: str = "restore",
    complete: bool = True,
    extra: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    **workload: Any,
) -> Measurement:
    """A measurement of those phases."""
    return Measurement(
        arm=arm,
        connector=ConnectorConfig(name=arm, kind=kind),
        server=ServerInfo(
            url="http://h:1",
            metrics_urls=("http://h:1/metrics",),
            engine_kind="attach",
            model="m",
            vllm_version="0.32.0",
            max_model_len=4096,
            block_size_tokens=CHUNK,
            num_gpu_blocks=40,
            kv_transfer_config=None
            if kind == "recompute"
            else {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": dict(extra or {})},
        ),
        workload=WorkloadConfig(mode=mode, prefix_tokens=PREFIX, suffix_tokens=PROMPT - PREFIX, **workload),
        plan=PlanSummary(
            mode=mode,
            seed=0,
            sessions=12,
            turns=1,
            working_set_tokens=1920,
            device_cache_tokens=640,
            block_size_tokens=CHUNK,
            evicts=True,
            explanation="12 sessions evict one another",
        ),
        phases=phases,
        started_at="2026-01-01T00:00:00+00:00",
        complete=complete,
        notes=notes,
        artefacts={"measurement": "/runs/native.measurement.json", "server_log": "/runs/server.log"},
    )


def good(n: int = 12, *, times: float = 0.05, cold: float = 0.4, **how: Any) -> Measurement:
    """A tier that does what it is for: everything comes back, eight times as fast."""
    wiggle = [0.001 * (index % 3) for index in range(n)]
    asked = PROMPT * n
    return measurement(
        phase("cold", [cold + w for w in wiggle], delta(prompt_tokens=asked, store_bytes=3e6, store_time=0.1)),
        phase(
            "restored",
            [times + w for w in wiggle],
            delta(
                prompt_tokens=asked,
                external=PREFIX * n,
                load_bytes=3e6,
                load_time=0.003,
                ttft=(n, (times + 0.001) * n),
                preemptions=0,
                failures=0,
            ),
        ),
        **how,
    )


def control(n: int = 12, *, times: float = 0.38) -> Measurement:
    """The arm without a connector."""
    meters = delta(prompt_tokens=PROMPT * n, connector=False)
    wiggle = [0.001 * (index % 3) for index in range(n)]
    return measurement(
        phase("cold", [times + w for w in wiggle], meters),
        phase("restored", [times + w for w in wiggle], meters),
        arm="control",
        kind="recompute",
    )


def resources(memory: Sequence[int], shm: Sequence[int] | None = None) -> list[ResourceSnapshot]:
    """Snapshots of a soak, a minute apart."""
    return [
        ResourceSnapshot(taken_at_seconds=60.0 * i, memory_bytes=value, shm_bytes=shm[i] if shm else 0)
        for i, value in enumerate(memory)
    ]
