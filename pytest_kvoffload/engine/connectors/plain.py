"""The two kinds without a tier of their own: the control, and whatever the user writes down whole."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pytest_kvoffload.engine.connectors.interface import ConnectorKind, LaunchContext, LaunchParts
from pytest_kvoffload.engine.options import OptionReader


def _recompute(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(())
    return LaunchParts()


def _raw(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(("kv_transfer_config",))
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
    return LaunchParts(kv_transfer_config=dict(value))


RECOMPUTE = ConnectorKind(name="recompute", summary="no connector: the control", options=(), build=_recompute)
RAW = ConnectorKind(
    name="raw",
    summary="any --kv-transfer-config, passed through as it is",
    options=("kv_transfer_config",),
    build=_raw,
)
