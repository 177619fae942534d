"""vLLM's MultiConnector: several connectors at once; it saves to all and loads from the first that has a hit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS
from pytest_kvoffload.engine.connectors.interface import ConnectorKind, LaunchContext, LaunchParts
from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.records import ConnectorConfig


def _build(options: OptionReader, context: LaunchContext) -> LaunchParts:
    from pytest_kvoffload.engine.connectors.registry import find_kind  # the registry knows this kind too

    options.only(MULTI.options)
    listed = options.options.get("connectors")
    if not isinstance(listed, list | tuple) or len(listed) < 2:
        raise options.fail(
            "connectors", "a list of at least two: names of connectors of this file, or tables with a kind", got=listed
        )
    children: list[LaunchParts] = []
    kinds: list[str] = []
    for index, child in enumerate(listed):
        section = f"{options.section}.connectors[{index}]"
        if isinstance(child, str):
            raise options.fail(
                "connectors", "names of connectors of the same configuration file, or tables with a kind", got=child
            )
        if not isinstance(child, Mapping) or not isinstance(child.get("kind"), str):
            raise options.fail("connectors", "tables, each with a kind", got=child)
        kind = find_kind(ConnectorConfig(name=section.removeprefix("connectors."), kind=child["kind"]))
        reader = OptionReader(section, {key: value for key, value in child.items() if key != "kind"})
        if kind.name == "multi":
            raise reader.fail("kind", "any kind but multi: a MultiConnector does not nest", got="multi")
        kinds.append(kind.name)
        made = kind.build(reader, _place_of(context, kinds.count(kind.name)))
        if "--kv-offloading-size" in made.args:
            raise reader.fail("via", "'config': the flag replaces the whole MultiConnector", got="flag")
        if made.kv_transfer_config is None or "kv_connector" not in made.kv_transfer_config:
            raise reader.fail("kind", "a connector with a --kv-transfer-config of its own", got=child["kind"])
        if "engine_id" in made.kv_transfer_config:
            raise reader.fail("engine_id", "no engine_id in a child: vLLM gives it the parent's")
        _refuse_other_values(reader, made, children)
        children.append(made)
    return _joined(children)


def _place_of(context: LaunchContext, number: int) -> LaunchContext:
    """Give the second child of a kind, and those after it, ports and a directory of its own."""
    if number == 1:
        return context
    return dataclasses.replace(
        context, port=lambda name: context.port(f"{name}-{number}"), scratch=context.scratch / str(number)
    )


def _refuse_other_values(reader: OptionReader, made: LaunchParts, before: list[LaunchParts]) -> None:
    """Refuse what one child alone would get: all of them are configured by the server's one environment."""
    set_already = {name: value for child in before for name, value in child.env.items()}
    differing = sorted(name for name, value in made.env.items() if set_already.get(name, value) != value)
    if differing:
        raise reader.fail(
            None,
            f"the same {', '.join(differing)} as a connector before it: they are variables of the server, and all "
            "connectors of a MultiConnector live in one environment",
        )


def _joined(children: list[LaunchParts]) -> LaunchParts:
    env: dict[str, str] = {}
    notes: list[str] = []
    for child in children:
        env.update(child.env)
        notes += [note for note in child.notes if note not in notes]
    # One child that can be neither salted nor cleared keeps the whole from being cold.
    warm = any(not child.salted and not child.clears for child in children)
    configs: list[Any] = [dict(child.kv_transfer_config or {}) for child in children]
    return LaunchParts(
        args=tuple(word for child in children for word in child.args),
        env=env,
        kv_transfer_config={
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": configs},
        },
        notes=tuple(notes),
        helpers=tuple(helper for child in children for helper in child.helpers),
        metrics_urls=tuple(dict.fromkeys(url for child in children for url in child.metrics_urls)),
        clears=() if warm else tuple(clear for child in children for clear in child.clears),
        salted=all(child.salted for child in children),
        fresh_dirs={name: folder for child in children for name, folder in child.fresh_dirs.items()},
        packages=tuple(sorted({package for child in children for package in child.packages})),
    )


MULTI = ConnectorKind(
    name="multi",
    summary="MultiConnector: several connectors of the configuration at once",
    options=KIND_OPTIONS["multi"].names,
    build=_build,
)
