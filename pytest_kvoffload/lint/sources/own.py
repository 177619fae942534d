"""Our own configuration: ``kvoffload.toml``, ``[tool.kvoffload]``, and the ``kvoffload`` mark of test files."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from pytest_kvoffload.lint.model import Config, Launch, Member, Node
from pytest_kvoffload.lint.sources.argv import Surroundings, build_launch, parse_arguments
from pytest_kvoffload.lint.sources.collect import Collector, comments_near, file_words, word_of
from pytest_kvoffload.lint.sources.configs import launch_configs
from pytest_kvoffload.lint.sources.requirements import read_project_versions
from pytest_kvoffload.lint.sources.text import Mapped
from pytest_kvoffload.lint.sources.tomltree import read_toml
from pytest_kvoffload.lint.sources.tree import from_json, from_yaml, scalar_node, yaml_scalar
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import env_vars, environment, words_of_node

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.py_values import PyValue
    from pytest_kvoffload.lint.sources.python import Reader

GIB = 2**30
_FIXED = ("kind", "args", "env", "extra_config", "size_gib", "kv_transfer_config")


def read_toml_file(out: Collector, text: Mapped) -> None:
    """Read a TOML file: our configuration, or a project's requirements and lock file."""
    document = read_toml(text)
    own = document.get("tool", "kvoffload")
    if own is None and document.get("connectors") is not None:
        own = document
    if own is not None:
        out.reader = "kvoffload"
        _connectors(out, own)
    read_project_versions(out, document)


def _connectors(out: Collector, own: YNode) -> None:
    engine = own.get("engine")
    shared = words_of_node(engine.get("args")) if engine is not None else []
    entries, _ = environment(out, engine.get("env") if engine is not None else None, "kvoffload.toml env")
    model = own.get("model", "path")
    connectors = own.get("connectors")
    for name, table in connectors.members() if connectors is not None and connectors.kind == "map" else ():
        if table.kind != "map":
            continue
        words = [*shared, *words_of_node(table.get("args"))]
        parsed = parse_arguments(out, words)
        more, _ = environment(out, table.get("env"), "kvoffload.toml env")
        env = env_vars(out, [*entries, *more])
        around = Surroundings(source="kvoffload", env=env)
        configs = launch_configs(out, parsed.flags, words, around)
        transfer = _transfer(out, table)
        first = out.location(name.at).line
        last = out.location(table.end).line
        out.add_launch(
            Launch(
                product="vllm",
                location=out.location(name.at),
                source="kvoffload",
                flags=parsed.flags,
                env=env,
                configs=(*configs, *([transfer] if transfer is not None else [])),
                model=out.value(model.text) if model is not None and model.scalar else None,
                words=(*file_words(out), *comments_near(out, first, min(last, first + 40)), out.value(name.text)),
                complete=parsed.complete,
                env_complete=False,
            )
        )


def _transfer(out: Collector, table: YNode) -> Config | None:
    """Return the ``--kv-transfer-config`` that a connector's kind stands for (engine/connectors.py)."""
    kind = table.string("kind")
    raw = table.get("kv_transfer_config")
    if kind == "raw" and raw is not None:
        if raw.kind == "scalar":
            node, error, where = from_json(out.source, raw.text)
            place = out.location(where if error else raw.at)
            return Config(kind="kv-transfer-config", node=node, location=place, text=raw.scalar, error=error)
        node = from_yaml(out.source, raw)
        return Config(kind="kv-transfer-config", node=node, location=node.location)
    if kind not in ("native", "tiering"):
        return None
    kind_node = table.get("kind")
    place = out.location(kind_node.at if kind_node is not None else table.at)
    extra = [_size(out, table)] if table.get("size_gib") is not None else []
    if kind == "tiering":
        extra.append(Member(key="spec_name", location=place, node=scalar_node("TieringOffloadingSpec", place, "")))
    for key, value in table.members():
        if key.scalar not in _FIXED:
            extra.append(Member(key=key.scalar, location=out.location(key.at), node=from_yaml(out.source, value)))
    further = table.get("extra_config")
    if further is not None and further.kind == "map":
        extra.extend(from_yaml(out.source, further).members)
    members = (
        Member(key="kv_connector", location=place, node=scalar_node("OffloadingConnector", place, "")),
        Member(key="kv_role", location=place, node=scalar_node("kv_both", place, "")),
        Member(
            key="kv_connector_extra_config",
            location=place,
            node=Node(kind="object", location=place, members=tuple(extra)),
        ),
    )
    return Config(kind="kv-transfer-config", node=Node(kind="object", location=place, members=members), location=place)


def _size(out: Collector, table: YNode) -> Member:
    size = table.get("size_gib")
    assert size is not None
    location = out.location(size.at)
    number = yaml_scalar(size)
    valid = isinstance(number, (int, float)) and not isinstance(number, bool) and 0 < number < 2**30
    node = (
        scalar_node(round(number * GIB), location, size.scalar) if valid else Node(kind="unresolved", location=location)
    )
    return Member(key="cpu_bytes_to_use", location=location, node=node)


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
