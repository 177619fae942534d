"""Our own configuration: ``kvoffload.toml``, ``[tool.kvoffload]``, and the ``kvoffload`` mark of test files."""

from __future__ import annotations

import ast
from pathlib import PurePath
from typing import TYPE_CHECKING

from pytest_kvoffload.config import CONFIG_NAME
from pytest_kvoffload.lint.model import Config, Launch, Member, Node
from pytest_kvoffload.lint.sources.argv import Surroundings, build_launch, parse_arguments
from pytest_kvoffload.lint.sources.collect import Collector, comments_near, file_words, word_of
from pytest_kvoffload.lint.sources.configs import launch_configs
from pytest_kvoffload.lint.sources.own_transfer import connector_of, lmcache_variables, names_our_kinds, transfer_of
from pytest_kvoffload.lint.sources.requirements import read_project_versions
from pytest_kvoffload.lint.sources.text import Mapped
from pytest_kvoffload.lint.sources.tomltree import read_toml
from pytest_kvoffload.lint.sources.tree import scalar_node
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import env_vars, environment, words_of_node

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.py_values import PyValue
    from pytest_kvoffload.lint.sources.python import Reader


def read_toml_file(out: Collector, text: Mapped) -> None:
    """Read a TOML file: our configuration, or a project's requirements and lock file."""
    document = read_toml(text)
    own = document.get("tool", "kvoffload")
    ours = own is not None or PurePath(out.source.path).name == CONFIG_NAME
    if own is None and document.get("connectors") is not None:
        own = document
    if own is not None:
        out.reader = "kvoffload"
        _connectors(out, own, ours=ours)
    read_project_versions(out, document)


def _connectors(out: Collector, own: YNode, *, ours: bool) -> None:
    engine = own.get("engine")
    shared = words_of_node(engine.get("args")) if engine is not None else []
    entries, _ = environment(out, engine.get("env") if engine is not None else None, "kvoffload.toml env")
    model = own.get("model", "path")
    connectors = own.get("connectors")
    if connectors is None or connectors.kind != "map":
        return
    ours = ours or names_our_kinds(connectors)
    for name, table in connectors.members():
        if table.kind != "map":
            continue
        words = [*shared, *words_of_node(table.get("args"))]
        parsed = parse_arguments(out, words)
        more, _ = environment(out, table.get("env"), "kvoffload.toml env")
        env = env_vars(out, [*lmcache_variables(out, table), *entries, *more])
        around = Surroundings(source="kvoffload", env=env)
        configs = launch_configs(out, parsed.flags, words, around)
        transfer = transfer_of(out, table, connectors)
        written = (connector_of(out, name, table),) if ours else ()
        further = [config for config in (_events(out, engine), transfer) if config is not None]
        first = out.location(name.at).line
        last = out.location(table.end).line
        out.add_launch(
            Launch(
                product="vllm",
                location=out.location(name.at),
                source="kvoffload",
                flags=parsed.flags,
                env=env,
                configs=(*written, *configs, *further),
                model=out.value(model.text) if model is not None and model.scalar else None,
                words=(*file_words(out), *comments_near(out, first, min(last, first + 40)), out.value(name.text)),
                complete=parsed.complete,
                env_complete=False,
            )
        )


def _events(out: Collector, engine: YNode | None) -> Config | None:
    """Return the ``--kv-events-config`` that ``kv_events = true`` stands for."""
    told = engine.get("kv_events") if engine is not None else None
    if told is None or told.scalar != "true":
        return None
    place = out.location(told.at)
    members = tuple(
        Member(key=key, location=place, node=scalar_node(value, place, ""))
        for key, value in (("enable_kv_cache_events", True), ("publisher", "zmq"))
    )
    return Config(kind="kv-events-config", node=Node(kind="object", location=place, members=members), location=place)


def launch_of_mark(reader: Reader, arguments: PyValue, node: ast.Call) -> None:
    """Make a partial launch of ``@pytest.mark.kvoffload(engine={"args": [...], "env": {...}})``."""
    from pytest_kvoffload.lint.sources.py_values import as_words
    from pytest_kvoffload.lint.sources.shell_state import env_var

    engine = arguments.get("engine")
    listed = engine.get("args") if engine is not None else None
    variables = engine.get("env") if engine is not None else None
    out = reader.out
    words = as_words(listed) if listed is not None and listed.kind == "list" else []
    env = tuple(
        env_var(out, name, at, word_of(value.text), "kvoffload mark")
        for name, at, value in (variables.members if variables is not None else [])
    )
    if not words and not env:
        return
    around = Surroundings(source="kvoffload", env=env, words=reader.words(node), complete=False, env_complete=False)
    first = words[0] if words else word_of(arguments.text)
    out.add_launch(build_launch(out, "vllm", first, words, around))
