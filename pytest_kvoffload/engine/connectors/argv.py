"""From a named connector to the server's arguments and environment."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from pytest_kvoffload.engine.connectors.cpu_platform import (
    LMCACHE_MODULE,
    SPEC_MODULE,
    extra_config,
    inside_dir,
    joined_path,
    native_size_flag,
    with_cpu_spec,
)
from pytest_kvoffload.engine.connectors.flags import flag_number
from pytest_kvoffload.engine.connectors.interface import LaunchContext, LaunchParts
from pytest_kvoffload.engine.connectors.registry import find_kind
from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.errors import ConfigError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig

_TRANSFER_FLAG = re.compile(r"--kv-transfer-config(?:[=.]|\Z)")


def connector_argv(
    connector: ConnectorConfig,
    *,
    engine: EngineConfig,
    server_version: str | None,
    cpu_platform: bool | None = None,
    engine_id: str | None = None,
    context: LaunchContext | None = None,
) -> LaunchParts:
    """Turn a named connector into arguments and environment for the server.

    Args:
        connector: the arm.
        engine: the engine that will run it; its arguments are looked at for ``--kv-offloading-size``.
        server_version: the version of vLLM, when known.
        cpu_platform: whether that vLLM runs on its CPU backend; ``None`` means "kind is ``cpu``".
        engine_id: written into the configuration unless the user's own names one, so that the server's
            ``/dev/shm`` files are known by name.
        context: interpreter, ports and scratch directory of a boot; without one nothing of a boot is known.

    Raises:
        ConfigError: an unknown kind, or an option that makes no sense.
    """
    words = (*engine.args, *connector.args)
    context = dataclasses.replace(
        context or LaunchContext(cpu_platform=False, server_version=None),
        cpu_platform=engine.kind == "cpu" if cpu_platform is None else cpu_platform,
        server_version=server_version,
        words=words,
        env={**os.environ, **engine.env, **connector.env},
        max_model_len=engine.max_model_len or flag_number(words, "--max-model-len"),
    )
    kind = find_kind(connector)
    parts = kind.build(OptionReader(f"connectors.{connector.name}", connector.options), context)
    config = None if parts.kv_transfer_config is None else dict(parts.kv_transfer_config)
    if config is not None and any(_TRANSFER_FLAG.match(word) for word in words):
        raise ConfigError(
            section=f"connectors.{connector.name}",
            key="args",
            expected="no --kv-transfer-config in args of the connector or the engine: this connector writes its own, "
            "and vLLM would take one of the two without a word (kind = 'raw' passes one through)",
        )
    notes = list(parts.notes)
    # What the user sets, for the engine or the connector, wins over what the kind would set.
    env = {**parts.env, **{name: engine.env[name] for name in parts.env if name in engine.env}, **connector.env}
    if config is None and context.cpu_platform and native_size_flag((*words, *parts.args)):
        # vLLM fills in connector, role and size from the flag and keeps our extra keys.
        config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    if config is not None:
        if context.cpu_platform:
            config, added = with_cpu_spec(config)
            if connector.kind == "raw":  # the other kinds never promised vLLM's own spec
                notes += added
            if added or _names_a_module_of_ours(config):
                env["PYTHONPATH"] = joined_path(str(inside_dir()), env.get("PYTHONPATH"))
        if engine_id and "kv_connector" in config and "engine_id" not in config:
            config = {**config, "engine_id": engine_id}
    args = () if config is None else ("--kv-transfer-config", json.dumps(config))
    return dataclasses.replace(
        parts,
        args=(*parts.args, *args, *connector.args),
        env=env,
        kv_transfer_config=config,
        notes=tuple(notes),
    )


def _names_a_module_of_ours(config: Mapping[str, Any]) -> bool:
    """Whether the configuration, or a child of a MultiConnector, names a module of engine/inside."""
    extra = extra_config(config)
    if extra.get("spec_module_path") == SPEC_MODULE or config.get("kv_connector_module_path") == LMCACHE_MODULE:
        return True
    children = extra.get("connectors") if config.get("kv_connector") == "MultiConnector" else None
    return isinstance(children, list) and any(
        isinstance(child, Mapping) and _names_a_module_of_ours(child) for child in children
    )


def validate_connector(connector: ConnectorConfig, *, engine: EngineConfig) -> None:
    """Raise the ConfigError that a boot with this connector would raise, without booting anything."""
    connector_argv(connector, engine=engine, server_version=None)
