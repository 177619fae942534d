"""The boot of a test as a launch record, so that the same rules judge it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_kvoffload.lint.model import Config, EnvVar, Flag, Launch, Location, Member, Node, Value
from pytest_kvoffload.records import ConnectorConfig, EngineConfig

JSON_FLAGS = ("--kv-transfer-config", "--kv-events-config")


def launch_of(connector: ConnectorConfig, engine: EngineConfig, argv: Sequence[str], env: Mapping[str, str]) -> Launch:
    """Make the record. Line numbers count the words of ``argv`` from 1; a variable stands on line 1."""
    path = f"[connectors.{connector.name}]"
    flags = tuple(_flags(path, argv))
    configs = []
    for flag in flags:
        name = flag.name.replace("_", "-")
        if name in JSON_FLAGS and flag.value is not None and flag.value.text is not None:
            configs.append(_config(name.removeprefix("--"), flag.value.text, flag.value.location))
    here = Location(path=path, line=1)
    variables = tuple(
        EnvVar(name=name, location=here, value=Value(text=text, location=here, raw=text), origin="configuration")
        for name, text in env.items()
    )
    model = next((f.value for f in flags if f.name == "--model"), None)
    return Launch(
        product="vllm",
        location=here,
        source="configuration",
        flags=flags,
        env=variables,
        configs=tuple(configs),
        model=model,
        env_complete=engine.kind != "attach",
    )


def _flags(path: str, argv: Sequence[str]) -> list[Flag]:
    found: list[Flag] = []
    index = 0
    while index < len(argv):
        word, where = argv[index], Location(path=path, line=index + 1)
        index += 1
        if not word.startswith("-") or word == "-":
            continue
        name, equals, text = word.partition("=")
        if equals:
            found.append(Flag(name=name, location=where, value=Value(text=text, location=where, raw=text), joined=True))
            continue
        following = argv[index] if index < len(argv) else None
        if following is None or (following.startswith("-") and not _number(following)):
            found.append(Flag(name=word, location=where))
            continue
        at = Location(path=path, line=index + 1)
        found.append(Flag(name=word, location=where, value=Value(text=following, location=at, raw=following)))
        index += 1
    return found


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _config(kind: str, text: str, where: Location) -> Config:
    try:
        node = _node(json.loads(text), where)
    except (ValueError, RecursionError) as error:
        empty = Node(kind="null", location=where, raw=text)
        return Config(kind=kind, node=empty, location=where, text=text, error=str(error))  # type: ignore[arg-type]
    return Config(kind=kind, node=node, location=where, text=text)  # type: ignore[arg-type]


def _node(value: Any, where: Location) -> Node:
    raw = json.dumps(value)
    if isinstance(value, dict):
        members = tuple(Member(key=str(k), location=where, node=_node(v, where)) for k, v in value.items())
        return Node(kind="object", location=where, members=members)
    if isinstance(value, list):
        return Node(kind="array", location=where, items=tuple(_node(v, where) for v in value))
    if isinstance(value, bool):
        return Node(kind="boolean", location=where, value=value, raw=raw)
    if isinstance(value, (int, float)):
        return Node(kind="number", location=where, value=value, raw=raw)
    if value is None:
        return Node(kind="null", location=where, raw=raw)
    return Node(kind="string", location=where, value=value, raw=raw)
