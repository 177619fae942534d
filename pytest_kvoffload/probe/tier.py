"""How many tokens the host tier holds: the connector's own number, or bytes over measured bytes per token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.query import total
from pytest_kvoffload.metrics.scrape import scrape
from pytest_kvoffload.probe.cache import settle
from pytest_kvoffload.records import ConnectorConfig, RequestSpec, ServerInfo, WorkloadConfig
from pytest_kvoffload.workload.chunks import chunk_tokens, extra_config
from pytest_kvoffload.workload.client import Drive, Target
from pytest_kvoffload.workload.plan import PlannedPhase
from pytest_kvoffload.workload.tokens import TokenPool

_CLEARED_BY_RESET = {"OffloadingConnector", "SimpleCPUOffloadConnector"}


def reset_clears_tier(info: ServerInfo, connector: ConnectorConfig) -> bool:
    """Whether ``reset_external`` empties everything: not so with secondary tiers, nor with foreign connectors."""
    if connector.kind == "recompute":
        return True
    config = info.kv_transfer_config
    if not config:
        return False
    return config.get("kv_connector") in _CLEARED_BY_RESET and not extra_config(info).get("secondary_tiers")


def learn_tier_tokens(
    info: ServerInfo,
    connector: ConnectorConfig,
    workload: WorkloadConfig,
    *,
    pool: TokenPool,
    target: Target,
    salt: str,
    check: Callable[[], None],
) -> int | None:
    """Find the tier's capacity in tokens; ``None`` when neither the server nor a trial store tells it."""
    snapshot = scrape(info.metrics_urls)
    for sample in snapshot.samples:
        # vLLM 0.33 and later, once the engine has run a step.
        if sample.name == "vllm:kv_offload_config_info" and sample.labels.get("cpu_kv_cache_size_tokens"):
            return int(float(sample.labels["cpu_kv_cache_size_tokens"]))
    size = extra_config(info).get("cpu_bytes_to_use", connector.options.get("cpu_bytes_to_use"))
    if size is None and connector.options.get("size_gib") is not None:
        size = float(connector.options["size_gib"]) * 2**30
    if size is None:
        return None
    per_token = _stored_bytes_per_token(info, workload, pool=pool, target=target, salt=salt, check=check)
    return None if per_token is None else int(float(size) / per_token)


def _stored_bytes_per_token(
    info: ServerInfo,
    workload: WorkloadConfig,
    *,
    pool: TokenPool,
    target: Target,
    salt: str,
    check: Callable[[], None],
) -> float | None:
    chunk = chunk_tokens(info)
    stored_tokens = workload.prefix_tokens // chunk * chunk
    if stored_tokens == 0 or pool.text_only:
        return None
    spec = RequestSpec(
        index=0,
        session=0,
        turn=0,
        prompt_token_ids=pool.draw(f"{workload.seed}/trial", workload.prefix_tokens),
        prefix_tokens=workload.prefix_tokens,
        # A second output token makes the engine take the step in which the store is submitted.
        output_tokens=2,
    )
    spec = replace(spec, cache_salt=f"{salt}-trial")
    before = settle(info, check=check)
    Drive(PlannedPhase(name="trial", requests=(spec,), preparation="none", concurrency=1), target).run(check)
    stored = total(delta(before, settle(info, check=check)), "vllm:kv_offload_store_bytes_total")
    return stored / stored_tokens if stored else None
