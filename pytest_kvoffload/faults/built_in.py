"""Connectors and a workload for scenarios where no configuration names any: small, so that one takes seconds."""

from __future__ import annotations

import dataclasses

from pytest_kvoffload.records import ConnectorConfig, EngineConfig, KVOffloadConfig, WorkloadConfig

NUM_GPU_BLOCKS, MAX_MODEL_LEN = 40, 4096
"""A device cache of 5,120 tokens on the CPU backend; vLLM refuses one that does not hold the longest request."""
WORKLOAD = WorkloadConfig(prefix_tokens=1024, suffix_tokens=16, output_tokens=8, sessions=8)
_OBJECT_TIER = {
    "size_gib": 0.25,
    "secondary_tiers": [{"type": "obj", "store_config": {"bucket": "stand-in", "endpoint_override": "ours"}}],
}
CONNECTORS = (
    ConnectorConfig(name="native", kind="native", options={"size_gib": 0.25}),
    ConnectorConfig(
        name="fs",
        kind="tiering",
        options={"size_gib": 0.25, "secondary_tiers": [{"type": "fs", "root_dir": "a directory of ours"}]},
    ),
    ConnectorConfig(name="obj", kind="tiering", options=_OBJECT_TIER),
    # The AWS SDK's own way to retry, ten times over 25 s, is replaced; without the mode the number is not read.
    ConnectorConfig(
        name="obj-bounded",
        kind="tiering",
        options=_OBJECT_TIER,
        env={"AWS_RETRY_MODE": "standard", "AWS_MAX_ATTEMPTS": "2"},
    ),
    ConnectorConfig(name="lmcache", kind="lmcache_mp", options={"l1_size_gb": 0.5}),
    ConnectorConfig(name="lmcache-bounded", kind="lmcache_mp", options={"l1_size_gb": 0.5, "mq_timeout_seconds": 5}),
    ConnectorConfig(name="lmcache-disk", kind="lmcache_mp", options={"l1_size_gb": 0.02, "l2": [{"type": "fs"}]}),
    ConnectorConfig(
        name="lmcache-redis",
        kind="lmcache_inprocess",
        options={"max_local_cpu_size": 0.5, "local_cpu": False, "remote": "redis"},
    ),
)
DEFAULTS = ("native", "fs")
"""What runs without a configuration and without ``--connector``: what needs nothing but vLLM."""


def for_chaos(config: KVOffloadConfig) -> KVOffloadConfig:
    """Return a configuration with what the user left open filled in for scenarios.

    Without a file the built-in connectors; without a workload the small one; on the generated model a small device
    cache, which a few prompts overflow.
    """
    engine: EngineConfig = config.engine
    if engine.num_gpu_blocks is None and config.model.path is None:
        longest = engine.max_model_len or MAX_MODEL_LEN
        engine = dataclasses.replace(engine, num_gpu_blocks=NUM_GPU_BLOCKS, max_model_len=longest)
    workload = config.workload
    if dataclasses.replace(workload, seed=0) == WorkloadConfig():
        workload = dataclasses.replace(WORKLOAD, seed=workload.seed)
    connectors = config.connectors
    if config.source is None:
        connectors = {connector.name: connector for connector in CONNECTORS}
    return dataclasses.replace(config, engine=engine, workload=workload, connectors=connectors)
