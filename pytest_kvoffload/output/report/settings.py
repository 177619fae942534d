"""What defines an arm, what differs between arms, and where they ran."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_kvoffload.engine.masking import mask_command, mask_environment, mask_value
from pytest_kvoffload.output.report.arms import ReportArm
from pytest_kvoffload.output.report.tables import Table
from pytest_kvoffload.output.report.text import one_line
from pytest_kvoffload.records import Measurement

CHANGES = 5
"""Differences that the first screen names; the table has all of them."""
ABSENT = "(not set)"
_TRANSFER = "kv-transfer-config"
_NOISE = ("VLLM_PORT", "engine_id", "--port")
"""Differ with every boot and say nothing."""


def configuration(arm: ReportArm) -> dict[str, str]:
    """Return what defines an arm, key by key, as text; secrets masked."""
    measurement = arm.first
    server, connector = measurement.server, measurement.connector
    transfer = mask_value(server.kv_transfer_config)
    if transfer is None:
        told = {_TRANSFER: "none" if connector.kind == "recompute" else "not told"}
    else:
        told = {_TRANSFER: "given", **{f"{_TRANSFER} {key}": text for key, text in _flat(transfer)}}
    found = {
        "connector kind": connector.kind,
        **{f"connector {key}": _plain(mask_value(value, name=key)) for key, value in connector.options.items()},
        "connector args": shlex.join(mask_command(connector.args)),
        **{f"connector env {key}": value for key, value in mask_environment(connector.env).items()},
        **told,
        "model": server.model,
        "engine": server.engine_kind,
        "vLLM": server.vllm_version or "not told",
        "max model length": _number(server.max_model_len, "tokens"),
        "block size": _number(server.block_size_tokens, "tokens"),
        "device cache": _number(server.device_cache_tokens, "tokens"),
        **{f"server env {key}": value for key, value in mask_environment(server.environment).items()},
    }
    for name in type(measurement.workload).__dataclass_fields__:
        found[f"workload {name}"] = _plain(getattr(measurement.workload, name))
    if len(arm.blocks) > 1:
        found["workload seed"] = ", ".join(str(block.workload.seed) for block in arm.blocks)
    return {key: value for key, value in found.items() if value}


def difference(arms: Sequence[ReportArm]) -> Table | None:
    """What differs between the arms; ``None`` with one arm."""
    if len(arms) < 2:
        return None
    found = [configuration(arm) for arm in arms]
    keys = list(dict.fromkeys(key for part in found for key in part))
    rows = tuple(
        (key, *(part.get(key, ABSENT) for part in found))
        for key in keys
        if len({part.get(key, ABSENT) for part in found}) > 1 and not key.endswith(_NOISE)
    )
    note = "" if rows else "Nothing differs."
    return Table(columns=("setting", *(arm.name for arm in arms)), rows=rows, note=note)


def changes(reference: ReportArm, candidate: ReportArm) -> tuple[str, ...]:
    """Return in a few lines what was changed: first what was written, then what came of it."""
    table = difference([reference, candidate])
    if table is None:
        return ()
    lines = [f"{key}: {one_line(old, 60)} → {one_line(new, 60)}" for key, old, new in table.rows]
    lines.sort(key=lambda line: line.startswith((_TRANSFER, "server env")))
    left = len(lines) - CHANGES
    return (*lines[:CHANGES], *((f"and {left} more settings, listed below",) if left > 0 else ()))


def environment(arms: Sequence[ReportArm]) -> Table:
    """Versions and machine, a column an arm; equal columns are joined."""
    names = [arm.name for arm in arms]
    found: list[Mapping[str, str]] = [dict(arm.first.environment) for arm in arms]
    if len({json.dumps(part, sort_keys=True) for part in found}) == 1:
        names, found = ["all arms" if len(names) > 1 else names[0]], found[:1]
    keys = list(dict.fromkeys(key for part in found for key in part))
    return Table(columns=("what", *names), rows=tuple((key, *(part.get(key, "-") for part in found)) for key in keys))


def server_command(measurement: Measurement) -> str:
    """Return the command that boots the arm's server again, secrets masked; empty for an attached one."""
    server = measurement.server
    if not server.command:
        return ""
    env = [f"{key}={value}" for key, value in mask_environment(server.environment).items()]
    return shlex.join([*(["env", *env] if env else []), *mask_command(server.command)])


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and their values: a nested change is one row, not two blocks of JSON to compare by eye."""
    if isinstance(value, Mapping) and value:
        for key in sorted(value, key=str):
            yield from _flat(value[key], f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, _plain(value) if value not in (None, "") else json.dumps(value)


def _number(value: int | None, unit: str) -> str:
    return "not told" if value is None else f"{value} {unit}"


def _plain(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
