"""Connector kinds: what each named connector of the configuration means on vLLM's command line.

A kind is one entry of :data:`KINDS`: a name, the options it knows and a function from options to the
``--kv-transfer-config`` mapping (or ``None`` for no connector). To add one, write that function and its entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.errors import ConfigError, did_you_mean
from pytest_kvoffload.records import ConnectorConfig, EngineConfig

SPEC_MODULE = "kvoffload_cpu_spec"
HOST_SPEC = "KVOffloadHostSpec"
TIERING_SPEC = "KVOffloadTieringSpec"
VLLM_HOST_SPEC, VLLM_TIERING_SPEC = "CPUOffloadingSpec", "TieringOffloadingSpec"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchParts:
    """What a connector adds to the server's command line and environment.

    ``kv_transfer_config`` is what ``args`` carry as JSON, ``None`` without a connector; ``notes`` say what was
    added to the user's own configuration and why.
    """

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    kv_transfer_config: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What a kind may need to know: the platform, and the server's version (``None`` when unknown)."""

    cpu_platform: bool
    server_version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorKind:
    """One kind of connector. ``build`` validates the options and returns the transfer configuration."""

    name: str
    summary: str
    options: tuple[str, ...]
    build: Callable[[OptionReader, LaunchContext], dict[str, Any] | None]


def inside_dir() -> Path:
    """The folder that goes on the server's PYTHONPATH when the cpu platform needs our offload spec."""
    return Path(__file__).resolve().parent / "inside"


def connector_argv(
    connector: ConnectorConfig,
    *,
    engine: EngineConfig,
    server_version: str | None,
    cpu_platform: bool | None = None,
    engine_id: str | None = None,
) -> LaunchParts:
    """Turn a named connector into arguments and environment for the server.

    Args:
        connector: the arm.
        engine: the engine that will run it; its arguments are looked at for ``--kv-offloading-size``.
        server_version: the version of vLLM, when known.
        cpu_platform: whether that vLLM runs on its CPU backend; ``None`` means "kind is ``cpu``".
        engine_id: written into the configuration unless the user's own names one, so that the server's
            ``/dev/shm`` files are known by name.

    Raises:
        ConfigError: an unknown kind, or an option that makes no sense.
    """
    context = LaunchContext(
        cpu_platform=engine.kind == "cpu" if cpu_platform is None else cpu_platform, server_version=server_version
    )
    kind = find_kind(connector)
    config = kind.build(OptionReader(f"connectors.{connector.name}", connector.options), context)
    notes: list[str] = []
    env = dict(connector.env)
    words = (*engine.args, *connector.args)
    if config is None and context.cpu_platform and _native_size_flag(words):
        # vLLM fills in connector, role and size from the flag and keeps our extra keys.
        config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    if config is not None:
        if context.cpu_platform:
            config, added = _with_cpu_spec(config)
            if connector.kind == "raw":  # the other kinds never promised vLLM's own spec
                notes += added
            if added or _extra(config).get("spec_module_path") == SPEC_MODULE:
                env["PYTHONPATH"] = _joined_path(str(inside_dir()), env.get("PYTHONPATH"))
        if engine_id and "kv_connector" in config and "engine_id" not in config:
            config = {**config, "engine_id": engine_id}
    args = () if config is None else ("--kv-transfer-config", json.dumps(config))
    return LaunchParts(args=(*args, *connector.args), env=env, kv_transfer_config=config, notes=tuple(notes))


def find_kind(connector: ConnectorConfig) -> ConnectorKind:
    """Return the kind of a connector, or raise a ConfigError that lists the known ones."""
    kind = KINDS.get(connector.kind)
    if kind is None:
        raise ConfigError(
            section=f"connectors.{connector.name}",
            key="kind",
            got=repr(connector.kind),
            expected=f"one of {', '.join(sorted(KINDS))}",
            hint=did_you_mean(connector.kind, KINDS),
        )
    return kind


def validate_connector(connector: ConnectorConfig, *, engine: EngineConfig) -> None:
    """Raise the ConfigError that a boot with this connector would raise, without booting anything."""
    connector_argv(connector, engine=engine, server_version=None)


# ---------------------------------------------------------------------------------------------------- kinds
def _recompute(options: OptionReader, context: LaunchContext) -> None:
    options.only(())


_HOST_KEYS = (
    "size_gib",
    "cpu_bytes_to_use",
    "blocks_per_chunk",
    "block_size",
    "eviction_policy",
    "store_threshold",
    "offload_prompt_only",
    "link_bandwidth_bytes_per_second",
    "link_latency_seconds",
    "extra_config",
)


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


def _native(options: OptionReader, context: LaunchContext) -> dict[str, Any]:
    options.only(_HOST_KEYS, hint="; extra_config = {...} passes any other key to vLLM unchecked")
    return _offloading(_host_extra(options, context))


def _tiering(options: OptionReader, context: LaunchContext) -> dict[str, Any]:
    options.only((*_HOST_KEYS, "secondary_tiers"), hint="; extra_config = {...} passes any other key to vLLM unchecked")
    tiers = options.options.get("secondary_tiers")
    if not isinstance(tiers, list | tuple) or not tiers:
        raise options.fail("secondary_tiers", "a non-empty list of tables, each with a type", got=tiers)
    for tier in tiers:
        if not isinstance(tier, Mapping) or not isinstance(tier.get("type"), str):
            raise options.fail("secondary_tiers", "tables, each with a type (fs, obj, p2p ...)", got=tier)
    if (options.integer("store_threshold", at_least=0) or 0) >= 2:
        raise options.fail("store_threshold", "0 or 1: vLLM's tiering refuses a threshold of 2 or more")
    extra = _host_extra(options, context)
    return _offloading({"spec_name": VLLM_TIERING_SPEC, **extra, "secondary_tiers": [dict(tier) for tier in tiers]})


def _raw(options: OptionReader, context: LaunchContext) -> dict[str, Any] | None:
    options.only(("kv_transfer_config",))
    value = options.options.get("kv_transfer_config")
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise options.fail(
                "kv_transfer_config", f"a table or a JSON object ({error})", got=options.options["kv_transfer_config"]
            ) from None
    if not isinstance(value, Mapping):
        raise options.fail("kv_transfer_config", "a table or a JSON object", got=value)
    return dict(value)


def _offloading(extra: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


# ---------------------------------------------------------------------------------------- the CPU platform
def _extra(config: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = config.get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def _with_cpu_spec(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Point an OffloadingConnector at our spec where vLLM's own refuses the CPU platform.

    Children of a MultiConnector are treated alike. A configuration whose extra part is not a table is left alone:
    vLLM refuses it, and that refusal is what the user should see.
    """
    if config.get("kv_connector") == "MultiConnector":
        children = _extra(config).get("connectors")
        if not isinstance(children, list):
            return config, []
        done = [_with_cpu_spec(dict(child)) if isinstance(child, Mapping) else (child, []) for child in children]
        extra = {**_extra(config), "connectors": [child for child, _ in done]}
        return {**config, "kv_connector_extra_config": extra}, [note for _, notes in done for note in notes]
    if config.get("kv_connector") != "OffloadingConnector":
        return config, []
    raw_extra = config.get("kv_connector_extra_config", {})
    if not isinstance(raw_extra, Mapping) or "spec_module_path" in raw_extra:
        return config, []
    named = raw_extra.get("spec_name", VLLM_HOST_SPEC)
    spec = {VLLM_HOST_SPEC: HOST_SPEC, VLLM_TIERING_SPEC: TIERING_SPEC}.get(named)
    if spec is None:
        return config, []
    extra = {**raw_extra, "spec_name": spec, "spec_module_path": SPEC_MODULE}
    note = f"{named} was replaced by {SPEC_MODULE}.{spec}: vLLM's own worker refuses its CPU backend"
    return {**config, "kv_connector_extra_config": extra}, [note]


def _native_size_flag(words: tuple[str, ...]) -> bool:
    """Whether the arguments turn native offload on by ``--kv-offloading-size``."""
    names = [word.split("=", 1)[0] for word in words]
    if "--kv-offloading-size" not in names or "--kv-transfer-config" in names:
        return False
    joined = " ".join(words).replace("=", " ")
    return "--kv-offloading-backend lmcache" not in joined


def _joined_path(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


KINDS: Mapping[str, ConnectorKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            ConnectorKind(name="recompute", summary="no connector: the control", options=(), build=_recompute),
            ConnectorKind(
                name="native", summary="OffloadingConnector with a host tier", options=_HOST_KEYS, build=_native
            ),
            ConnectorKind(
                name="tiering",
                summary="OffloadingConnector with a host tier and secondary tiers (fs, obj ...)",
                options=(*_HOST_KEYS, "secondary_tiers"),
                build=_tiering,
            ),
            ConnectorKind(
                name="raw",
                summary="any --kv-transfer-config, passed through as it is",
                options=("kv_transfer_config",),
                build=_raw,
            ),
        )
    }
)
