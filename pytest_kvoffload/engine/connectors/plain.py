"""The two kinds without a tier of their own: the control, and whatever the user writes down whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS
from pytest_kvoffload.engine.connectors.interface import ConnectorKind, LaunchContext, LaunchParts
from pytest_kvoffload.engine.connectors.tiers import NIXL_TYPES
from pytest_kvoffload.engine.options import OptionReader

_NEEDS: Mapping[str, str] = {"LMCache": "lmcache", "Nixl": "nixl"}
"""Word in a connector's name to the extra of the engine catalog that it needs."""


def _recompute(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(RECOMPUTE.options)
    return LaunchParts()


def _raw(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(RAW.options)
    value = options.options.get("kv_transfer_config")
    if value is None:
        return LaunchParts()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise options.fail(
                "kv_transfer_config", f"a table or a JSON object ({error})", got=options.options["kv_transfer_config"]
            ) from None
    if not isinstance(value, Mapping):
        raise options.fail("kv_transfer_config", "a table or a JSON object", got=value)
    return LaunchParts(kv_transfer_config=dict(value), packages=_packages(value))


def _packages(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What a managed engine must have for the connectors that a configuration names, children included."""
    extra = config.get("kv_connector_extra_config")
    children = extra.get("connectors") if isinstance(extra, Mapping) else None
    found = {package for word, package in _NEEDS.items() if word in str(config.get("kv_connector", ""))}
    tiers = extra.get("secondary_tiers") if isinstance(extra, Mapping) else None
    if any(isinstance(tier, Mapping) and tier.get("type") in NIXL_TYPES for tier in _listed(tiers)):
        found.add("nixl")
    for child in _listed(children):
        found |= set(_packages(child)) if isinstance(child, Mapping) else set()
    return tuple(sorted(found))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


RECOMPUTE = ConnectorKind(
    name="recompute", summary="no connector: the control", options=KIND_OPTIONS["recompute"].names, build=_recompute
)
RAW = ConnectorKind(
    name="raw",
    summary="any --kv-transfer-config, passed through as it is",
    options=KIND_OPTIONS["raw"].names,
    build=_raw,
)
