"""``kvoffload.toml`` or ``[tool.kvoffload]`` of ``pyproject.toml`` -> records.

Every error says which section and key, what was found, what is legal and, where a word was misspelt, which one was
probably meant. The options of a connector stay raw here: the engine room knows the connector kinds and checks them
with the same error.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pytest_kvoffload.catalog.connector_options import TABLE_KEYS
from pytest_kvoffload.errors import ConfigError, did_you_mean
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, KVOffloadConfig, ModelConfig, WorkloadConfig

__all__ = ["CONFIG_NAME", "build_config", "find_config", "load_config", "override", "parse_toml_text"]

CONFIG_NAME = "kvoffload.toml"
_SECTIONS = ("model", "engine", "connectors", "workload", "gate", "lint")
_WORKLOAD_RANGES: Mapping[str, tuple[float, str]] = {
    "sessions": (1, "a whole number of at least 1"),
    "prefix_tokens": (1, "a number of tokens of at least 1"),
    "suffix_tokens": (0, "a number of tokens of at least 0"),
    "output_tokens": (1, "a number of tokens of at least 1"),
    "turns": (1, "a whole number of at least 1"),
    "concurrency": (1, "a whole number of at least 1"),
    "repeats": (1, "a whole number of at least 1"),
    "seed": (0, "a whole number of at least 0"),
}

RecordT = TypeVar("RecordT")


def find_config(start: Path) -> Path | None:
    """Return the configuration that governs ``start``: the nearest file upwards.

    In each directory ``kvoffload.toml`` wins over a ``pyproject.toml`` that has a ``[tool.kvoffload]`` table.
    """
    for directory in (start, *start.parents):
        own = directory / CONFIG_NAME
        if own.is_file():
            return own
        project = directory / "pyproject.toml"
        if project.is_file() and b"[tool.kvoffload" in project.read_bytes():
            return project
    return None


def load_config(path: Path | None) -> KVOffloadConfig:
    """Read a configuration file; ``None`` gives the defaults (a control and a native host tier of 1 GiB).

    Raises:
        ConfigError: the file is missing, is no TOML, or says something that cannot be meant.
    """
    if path is None:
        return build_config({}, source=None)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            section="file", got=error.strerror or str(error), expected="a readable file", source=str(path)
        ) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(section="file", got=str(error), expected="UTF-8 text", source=str(path)) from error
    return build_config(parse_toml_text(text, name=path.name, source=str(path)), source=str(path))


def build_config(data: Mapping[str, Any], *, source: str | None) -> KVOffloadConfig:
    """Turn plain data (a parsed TOML file) into records; see :func:`load_config`."""
    for key in data:
        if key not in _SECTIONS:
            raise ConfigError(
                section=key,
                expected="one of the sections " + ", ".join(_SECTIONS),
                source=source,
                hint=did_you_mean(key, _SECTIONS),
            )
    gate = dict(_table(data, "gate", source))
    thresholds = gate.pop("thresholds", [])
    if not isinstance(thresholds, list) or not all(isinstance(t, str) for t in thresholds):
        raise ConfigError(
            section="gate",
            key="thresholds",
            got=repr(thresholds),
            expected="a list of expressions such as 'restored.hit_rate >= 0.6'",
            source=source,
        )
    workload = override(WorkloadConfig(), _table(data, "workload", source), section="workload", source=source)
    _check_workload(workload, source)
    engine = override(EngineConfig(), _table(data, "engine", source), section="engine", source=source)
    _check_engine(engine, source)
    return KVOffloadConfig(
        model=override(ModelConfig(), _table(data, "model", source), section="model", source=source),
        engine=engine,
        connectors=_connectors(data, source),
        workload=workload,
        thresholds=tuple(thresholds),
        gate=gate,
        lint=dict(_table(data, "lint", source)),
        source=source,
    )


def override(record: RecordT, values: Mapping[str, Any], *, section: str, source: str | None = None) -> RecordT:
    """Return a copy of a configuration record with some fields replaced, each checked against its type.

    Raises:
        ConfigError: an unknown key or a value of the wrong type.
    """
    import msgspec

    hints = typing.get_type_hints(type(record))
    known = [f.name for f in dataclasses.fields(record)]  # type: ignore[arg-type]
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(
                section=section,
                key=key,
                got="an unknown key",
                expected="one of " + ", ".join(sorted(known)),
                source=source,
                hint=did_you_mean(key, known),
            )
        try:
            checked[key] = msgspec.convert(value, hints[key])
        except msgspec.ValidationError as error:
            raise ConfigError(
                section=section, key=key, got=repr(value), expected=_expected(str(error), hints[key]), source=source
            ) from error
    return dataclasses.replace(record, **checked)  # type: ignore[type-var]


def parse_toml_text(text: str, *, name: str, source: str) -> Mapping[str, Any]:
    """Parse a configuration file's text; of a ``pyproject.toml`` only ``[tool.kvoffload]``.

    Raises:
        ConfigError: no valid TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(section="file", got=str(error), expected="valid TOML", source=source) from error
    if name == "pyproject.toml":
        tool = data.get("tool", {}).get("kvoffload", {})
        if not isinstance(tool, dict):
            raise ConfigError(section="tool.kvoffload", got=repr(tool), expected="a table", source=source)
        return dict(tool)
    return dict(data)


def _table(data: Mapping[str, Any], name: str, source: str | None) -> Mapping[str, Any]:
    value = data.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(section=name, got=repr(value), expected="a table", source=source)
    return value


def _connectors(data: Mapping[str, Any], source: str | None) -> Mapping[str, ConnectorConfig]:
    if "connectors" not in data:
        return {
            "control": ConnectorConfig(name="control", kind="recompute"),
            "native": ConnectorConfig(name="native", kind="native", options={"size_gib": 1.0}),
        }
    found: dict[str, ConnectorConfig] = {}
    for name, table in _table(data, "connectors", source).items():
        section = f"connectors.{name}"
        if not isinstance(table, Mapping):
            raise ConfigError(section=section, got=repr(table), expected="a table", source=source)
        if "kind" not in table:
            hint = next((did_you_mean(k, TABLE_KEYS) for k in table if did_you_mean(k, TABLE_KEYS)), "")
            raise ConfigError(
                section=section,
                key="kind",
                got="nothing",
                expected="the kind of connector, such as 'native' or 'recompute'",
                source=source,
                hint=hint,
            )
        fixed = {key: table[key] for key in TABLE_KEYS if key in table}
        options = {key: value for key, value in table.items() if key not in TABLE_KEYS}
        found[name] = override(
            ConnectorConfig(name=name, kind="recompute", options=options), fixed, section=section, source=source
        )
    found = {name: _with_members(connector, found, source) for name, connector in found.items()}
    if not found:
        raise ConfigError(section="connectors", got="an empty table", expected="at least one connector", source=source)
    return found


def _with_members(
    connector: ConnectorConfig, known: Mapping[str, ConnectorConfig], source: str | None
) -> ConnectorConfig:
    """Put the tables in place of the names that a connector of kind ``multi`` lists, so that it stands alone."""
    listed = connector.options.get("connectors")
    if connector.kind != "multi" or not isinstance(listed, list):
        return connector
    members: list[Any] = []
    args: list[str] = []
    env = dict(connector.env)
    for name in listed:
        if not isinstance(name, str):
            members.append(name)
            continue
        if name not in known:
            others = [other for other in known if other != connector.name]
            raise ConfigError(
                section=f"connectors.{connector.name}",
                key="connectors",
                got=repr(name),
                expected=f"a table, or one of {', '.join(others)}",
                source=source,
                hint=did_you_mean(name, others),
            )
        member = known[name]
        members.append({"kind": member.kind, **member.options})
        args += member.args
        env = {**member.env, **env}
    return dataclasses.replace(
        connector, options={**connector.options, "connectors": members}, args=(*args, *connector.args), env=env
    )


def _check_workload(workload: WorkloadConfig, source: str | None) -> None:
    for key, (low, expected) in _WORKLOAD_RANGES.items():
        value = getattr(workload, key)
        if value is not None and value < low:
            raise ConfigError(section="workload", key=key, got=repr(value), expected=expected, source=source)
    if workload.overflow <= 0:
        raise ConfigError(
            section="workload",
            key="overflow",
            got=repr(workload.overflow),
            expected="working set over device cache, a ratio above 0 (1.5 makes it half as large again)",
            source=source,
        )
    if workload.rate_per_second is not None and workload.rate_per_second <= 0:
        raise ConfigError(
            section="workload",
            key="rate_per_second",
            got=repr(workload.rate_per_second),
            expected="requests per second above 0, or leave it out for a closed loop",
            source=source,
        )


def _check_engine(engine: EngineConfig, source: str | None) -> None:
    if engine.kind == "attach" and not engine.url:
        raise ConfigError(
            section="engine", key="url", got="nothing", expected="the URL of the server to attach to", source=source
        )
    if engine.kind != "attach" and engine.url:
        raise ConfigError(
            section="engine",
            key="url",
            got=repr(engine.url),
            expected=f"no URL: the engine kind is {engine.kind!r} (kind = 'attach' uses a running server)",
            source=source,
        )
    for key in ("engine_urls", "kv_event_endpoints"):
        if engine.kind != "attach" and getattr(engine, key):
            raise ConfigError(
                section="engine",
                key=key,
                got=repr(list(getattr(engine, key))),
                expected=f"none: the engine kind is {engine.kind!r} (kind = 'attach' uses running servers)",
                source=source,
            )
    if engine.kv_event_endpoints and not engine.kv_events:
        raise ConfigError(
            section="engine",
            key="kv_events",
            got="false",
            expected="true: kv_event_endpoints are named, and nobody would listen",
            source=source,
        )
    for key in ("boot_timeout_seconds", "request_timeout_seconds"):
        if getattr(engine, key) <= 0:
            raise ConfigError(
                section="engine",
                key=key,
                got=repr(getattr(engine, key)),
                expected="a number of seconds above 0",
                source=source,
            )


def _expected(message: str, hint: Any) -> str:
    """Turn msgspec's "Expected `int`, got `str`" into the words after "expected"."""
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(typing.get_args(hint))
    head = message.split(", got", maxsplit=1)[0].removeprefix("Expected ").replace("`", "").replace(" | null", "")
    place = message.partition(" - at ")[2].strip("`").removeprefix("$")
    return f"{head} at {place}" if place else head
