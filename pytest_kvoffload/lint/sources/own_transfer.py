"""What a kind of our own configuration means to vLLM: its ``--kv-transfer-config``, for the rules to read."""

from __future__ import annotations

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS, TABLE_KEYS, KindOptions
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.model import Config, Location, Member, Node
from pytest_kvoffload.lint.sources.collect import Collector, Word
from pytest_kvoffload.lint.sources.tree import from_json, from_yaml, scalar_node, yaml_scalar
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import word_of_node

GIB = 2**30
_LMCACHE = ("lmcache_mp", "lmcache_inprocess")
"""Kinds whose options configure LMCache: its server's flags, or the environment of vLLM."""


def names_our_kinds(connectors: YNode) -> bool:
    """Whether a table ``connectors`` is ours: one of its entries is of a kind that there is."""
    return connectors.kind == "map" and any(table.string("kind") in KIND_OPTIONS for _, table in connectors.members())


def connector_of(out: Collector, name: YNode, table: YNode) -> Config:
    """Return one connector's table as written, for the rule that knows our own options."""
    return Config(kind="kvoffload-connector", node=from_yaml(out.source, table), location=out.location(name.at))


def transfer_of(out: Collector, table: YNode, connectors: YNode) -> Config | None:
    """Return the configuration that a connector's table stands for, ``None`` where there is none or it is not known.

    Args:
        out: whose source the table lies in.
        table: one connector.
        connectors: all of them; a MultiConnector names others.
    """
    raw = table.get("kv_transfer_config")
    if table.string("kind") == "raw" and raw is not None and raw.kind == "scalar":
        node, error, where = from_json(out.source, raw.text)
        place = out.location(where if error else raw.at)
        return Config(kind="kv-transfer-config", node=node, location=place, text=raw.scalar, error=error)
    made = _node(out, table, connectors)
    return None if made is None else Config(kind="kv-transfer-config", node=made, location=made.location)


def lmcache_variables(out: Collector, table: YNode) -> list[tuple[str, int, Word, str]]:
    """Return the environment that a connector of kind ``lmcache_inprocess`` stands for, each where it is written."""
    if table.string("kind") != "lmcache_inprocess":
        return []
    config = table.get("config")
    further = config.members() if config is not None and config.kind == "map" else ()
    # A remote store that is started by us has a URL too, whatever its port will be.
    settings = (*KIND_OPTIONS["lmcache_inprocess"].settings, "remote")
    named = [(key, value) for key, value in table.members() if key.scalar in settings]
    return [
        (_variable(key.scalar), key.at, word_of_node(value), "kvoffload.toml")
        for key, value in (*named, *further)
        # "true" stands for a directory of ours.
        if value.kind == "scalar" and not (key.scalar == "local_disk" and value.scalar in ("true", "false"))
    ]


def _variable(key: str) -> str:
    return "LMCACHE_REMOTE_URL" if key == "remote" else f"LMCACHE_{key.upper()}"


def _node(out: Collector, table: YNode, connectors: YNode) -> Node | None:
    kind = table.string("kind") or ""
    raw = table.get("kv_transfer_config")
    if kind == "raw" and raw is not None:
        return from_yaml(out.source, raw)
    kind_node = table.get("kind")
    place = out.location(kind_node.at if kind_node is not None else table.at)
    if kind == "multi":
        members = [Member(key="connectors", location=place, node=_children(out, table, connectors, place))]
        return _transfer_node("MultiConnector", members, place)
    if kind in _LMCACHE:
        given = table.get("extra_config")
        members = list(from_yaml(out.source, given).members) if given is not None and given.kind == "map" else []
        return _transfer_node(KIND_OPTIONS[kind].connector or "", members, place)
    if kind not in KIND_OPTIONS or KIND_OPTIONS[kind].connector is None:
        return None
    options = KIND_OPTIONS[kind]
    extra = [_size(out, table)] if table.get("size_gib") is not None else []
    if kind == "tiering":
        extra.append(Member(key="spec_name", location=place, node=scalar_node("TieringOffloadingSpec", place, "")))
    for key, value in table.members():
        if key.scalar in options.keys:
            extra.append(Member(key=key.scalar, location=out.location(key.at), node=from_yaml(out.source, value)))
        elif meant := _meant(key.scalar, options):
            # Refused by a rule of its own; the others need not say that what was meant is missing.
            at = out.location(key.at)
            extra.append(Member(key=meant, location=at, node=Node(kind="unresolved", location=at)))
    further = table.get("extra_config")
    if further is not None and further.kind == "map":
        extra.extend(from_yaml(out.source, further).members)
    return _transfer_node(options.connector or "", extra, place)


def _meant(key: str, options: KindOptions) -> str | None:
    """Return vLLM's key that a misspelt option of ours was to become, where one can be guessed."""
    if key in (*TABLE_KEYS, *options.names):
        return None
    meant = next((name for name in (*options.keys, "size_gib") if did_you_mean(key, [name])), None)
    return "cpu_bytes_to_use" if meant == "size_gib" else meant


def _children(out: Collector, table: YNode, connectors: YNode, place: Location) -> Node:
    """The children of a MultiConnector: tables of its own, or other connectors of the file by name."""
    listed = table.get("connectors")
    items: list[Node] = []
    for child in listed.items if listed is not None and listed.kind == "seq" else ():
        named = connectors.get(child.scalar) if child.kind == "scalar" else child
        made = None
        if named is not None and named is not table and named.kind == "map" and named.string("kind") != "multi":
            made = _node(out, named, connectors)
        items.append(made if made is not None else Node(kind="unresolved", location=out.location(child.at)))
    return Node(kind="array", location=place, items=tuple(items))


def _transfer_node(name: str, extra: list[Member], place: Location) -> Node:
    members = (
        Member(key="kv_connector", location=place, node=scalar_node(name, place, "")),
        Member(key="kv_role", location=place, node=scalar_node("kv_both", place, "")),
        Member(
            key="kv_connector_extra_config",
            location=place,
            node=Node(kind="object", location=place, members=tuple(extra)),
        ),
    )
    return Node(kind="object", location=place, members=members)


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
