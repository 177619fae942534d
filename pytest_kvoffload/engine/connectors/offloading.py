"""vLLM's own OffloadingConnector: the host tier, and the tiers below it."""

from __future__ import annotations

import dataclasses
from typing import Any

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS
from pytest_kvoffload.engine.connectors.cpu_platform import VLLM_TIERING_SPEC
from pytest_kvoffload.engine.connectors.interface import ConnectorKind, LaunchContext, LaunchParts
from pytest_kvoffload.engine.connectors.tiers import read_tiers
from pytest_kvoffload.engine.options import GIB, OptionReader
from pytest_kvoffload.errors import did_you_mean


def _host_extra(options: OptionReader, context: LaunchContext) -> dict[str, Any]:
    """The extra configuration that the host tier and the tiering connector share."""
    extra: dict[str, Any] = {"cpu_bytes_to_use": options.host_bytes()}
    further = options.mapping("extra_config")
    if options.has("blocks_per_chunk") and options.has("block_size"):
        raise options.fail("block_size", "blocks_per_chunk (blocks) or block_size (tokens), not both")
    for key in ("blocks_per_chunk", "block_size"):
        if (count := options.integer(key, at_least=1)) is not None:
            extra[key] = count
    policy = options.text("eviction_policy")
    if policy is not None:
        if policy not in ("lru", "arc") and "cache_policy_module_path" not in further:
            raise options.fail(
                "eviction_policy", "'lru' or 'arc'", got=policy, hint=did_you_mean(policy.lower(), ("lru", "arc"))
            )
        extra["eviction_policy"] = policy
    if (threshold := options.integer("store_threshold", at_least=0)) is not None:
        extra["store_threshold"] = threshold
    if (prompt_only := options.boolean("offload_prompt_only")) is not None:
        extra["offload_prompt_only"] = prompt_only
    for key, value in (
        ("link_bandwidth_bytes_per_second", options.number("link_bandwidth_bytes_per_second", above=0)),
        ("link_latency_seconds", options.number("link_latency_seconds", at_least=0)),
    ):
        if value is None:
            continue
        if not context.cpu_platform:
            raise options.fail(key, "no modelled link here: only vLLM's CPU backend runs our offload spec")
        extra[key] = value
    return {**extra, **further}


def _native(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(NATIVE.options, hint="; extra_config = {...} passes any other key to vLLM unchecked")
    via = options.text("via") or "config"
    if via not in ("config", "flag"):
        raise options.fail(
            "via",
            "'config' (--kv-transfer-config) or 'flag' (--kv-offloading-size)",
            got=via,
            hint=did_you_mean(via, ("config", "flag")),
        )
    extra = _host_extra(options, context)
    if via == "config":
        return _offloading(extra)
    # vLLM fills in connector, role and size from the flag, and keeps the other keys of the extra configuration.
    size = extra.pop("cpu_bytes_to_use")
    if not isinstance(size, int):
        raise options.fail("extra_config", "no cpu_bytes_to_use beside via = 'flag': the flag overwrites it")
    args = ("--kv-offloading-size", repr(size / GIB))
    return dataclasses.replace(_offloading(extra), args=args) if extra else LaunchParts(args=args)


def _tiering(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(TIERING.options, hint="; extra_config = {...} passes any other key to vLLM unchecked")
    if (options.integer("store_threshold", at_least=0) or 0) >= 2:
        raise options.fail("store_threshold", "0 or 1: vLLM's tiering refuses a threshold of 2 or more")
    tiers = read_tiers(options, context)
    extra = _host_extra(options, context)
    made = _offloading({"spec_name": VLLM_TIERING_SPEC, **extra, "secondary_tiers": tiers.entries})
    return dataclasses.replace(made, env=tiers.env, packages=tiers.packages, notes=tuple(tiers.notes))


def _offloading(extra: dict[str, Any]) -> LaunchParts:
    return LaunchParts(
        kv_transfer_config={
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
    )


NATIVE = ConnectorKind(
    name="native", summary="OffloadingConnector with a host tier", options=KIND_OPTIONS["native"].names, build=_native
)
TIERING = ConnectorKind(
    name="tiering",
    summary="OffloadingConnector with a host tier and secondary tiers (fs, obj ...)",
    options=KIND_OPTIONS["tiering"].names,
    build=_tiering,
)
