"""Structured configurations of a launch: JSON of a flag, dotted flags, and files that the same text writes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_kvoffload.lint.model import Config, Flag, Member, Node
from pytest_kvoffload.lint.sources.collect import Collector, Word
from pytest_kvoffload.lint.sources.text import HOLE, Mapped
from pytest_kvoffload.lint.sources.tree import from_json, from_yaml, scalar_node
from pytest_kvoffload.lint.sources.yamltree import read_yaml

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.argv import Surroundings


_JSON_FLAGS = {"--kv-transfer-config": "kv-transfer-config", "--kv-events-config": "kv-events-config"}


def launch_configs(out: Collector, flags: Sequence[Flag], words: Sequence[Word], around: Surroundings) -> list[Config]:
    """Build the structured configurations that belong to a launch, in the order they are written."""
    configs: list[Config] = []
    texts = {id(f): m for f, m in _flag_texts(flags, words)}
    dotted: list[tuple[str, Flag, Mapped | None]] = []
    for flag in flags:
        name = flag.name.split(".", 1)[0].replace("_", "-") if flag.name.startswith("--") else flag.name
        if name == "--kv-transfer-config" and "." in flag.name:
            dotted.append((flag.name.split(".", 1)[1], flag, texts.get(id(flag))))
            continue
        kind = _JSON_FLAGS.get(name)
        if kind and "." not in flag.name and flag.value is not None:
            text = texts.get(id(flag))
            if text is not None:
                configs.append(json_config(out, kind, text))
        if name == "--config" and flag.value is not None and flag.value.text and not flag.joined:
            content = find_file(around.files, flag.value.text)
            if content is not None:
                configs.extend(yaml_configs(out, content, "vllm-config-yaml"))
    if dotted:
        configs.append(_dotted_config(out, dotted))
    for variable in around.env:
        if variable.name == "LMCACHE_CONFIG_FILE" and variable.value.text:
            content = find_file(around.files, variable.value.text)
            if content is not None:
                configs.extend(yaml_configs(out, content, "lmcache-yaml"))
    return configs


def find_file(files: Sequence[tuple[str, Mapped]], name: str) -> Mapped | None:
    """Find a file written by the same text: the same path, else the same base name."""
    base = name.rsplit("/", 1)[-1]
    for path, content in reversed(files):
        if path == name:
            return content
    for path, content in reversed(files):
        if path.rsplit("/", 1)[-1] == base and base:
            return content
    return None


def yaml_configs(out: Collector, content: Mapped, kind: str) -> list[Config]:
    """Read a configuration file's YAML text into one config."""
    result = read_yaml(content)
    for first, later in result.duplicates:
        out.add_problem(later.at, duplicate_message(out, first.scalar, first.at))
    documents = [d for d in result.documents if d.kind == "map"]
    if not documents:
        return []
    node = from_yaml(out.source, documents[0])
    error = result.error[1] if result.error else None
    return [Config(kind=kind, node=node, location=node.location, text=content.text, error=error)]  # type: ignore[arg-type]


def duplicate_message(out: Collector, key: str, first: int) -> str:
    """Word the duplicate-key problem."""
    return f"duplicate key {key!r}: line {out.location(first).line} is overwritten by this one"


def _flag_texts(flags: Sequence[Flag], words: Sequence[Word]) -> list[tuple[Flag, Mapped]]:
    """Pair flags with the mapped text of their values (a record's value has lost its places)."""
    pairs: list[tuple[Flag, Mapped]] = []
    position = 0
    for flag in flags:
        while position < len(words):
            word = words[position]
            position += 1
            if flag.joined and word.text.startswith(flag.name + "="):
                pairs.append((flag, word.value[len(flag.name) + 1 :]))
                break
            if not flag.joined and word.text == flag.name:
                if flag.value is not None and position < len(words):
                    pairs.append((flag, words[position].value))
                    position += 1
                break
    return pairs


def json_config(out: Collector, kind: str, text: Mapped) -> Config:
    """Parse a JSON flag's value."""
    node, error, where = from_json(out.source, text)
    shown = None if HOLE in text.text else text.text
    location = out.location(where) if error and HOLE not in text.text else out.location(text.at)
    return Config(
        kind=kind,  # type: ignore[arg-type]
        node=node,
        location=location,
        text=shown,
        error=error if HOLE not in text.text else None,
    )


def _dotted_config(out: Collector, entries: Sequence[tuple[str, Flag, Mapped | None]]) -> Config:
    """Merge ``--kv-transfer-config.a.b value`` flags to a tree with vLLM's own value rules.

    vLLM (utils/argparse_utils.py, parse_args): ``json.loads``, else a human-readable integer, else the string; so
    ``False`` with a capital letter stays a string. ``key+`` is a comma-separated list.
    """
    root: dict[str, object] = {}
    places: dict[tuple[str, ...], Flag] = {}
    for path, flag, text in entries:
        is_list = path.endswith("+")
        keys = path.rstrip("+").split(".")[:20]
        leaf = _dotted_leaf(out, flag, text, is_list)
        here = root
        for depth, key in enumerate(keys[:-1]):
            below = here.get(key)
            if not isinstance(below, dict):
                below = {}
                here[key] = below
            places.setdefault(tuple(keys[: depth + 1]), flag)
            here = below
        here[keys[-1]] = leaf
        places[tuple(keys)] = flag
    first = entries[0][1]
    node = _dotted_node(root, (), places, first)
    return Config(kind="kv-transfer-dotted", node=node, location=first.location)


def _dotted_leaf(out: Collector, flag: Flag, text: Mapped | None, is_list: bool) -> Node:
    if text is None:
        return Node(kind="null", location=flag.location)
    location = out.location(text.at)
    if HOLE in text.text:
        return Node(kind="unresolved", location=location, raw=text.text)
    if is_list:
        items = tuple(scalar_node(p, location, p) for p in text.text.split(","))
        return Node(kind="array", location=location, items=items, raw=text.text)
    try:
        json.loads(text.text)
    except (ValueError, RecursionError):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.text)
        if match:
            powers = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
            binary = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
            factor = {**powers, **binary}[match.group(2)]
            return scalar_node(int(float(match.group(1)) * factor), location, text.text)
        return scalar_node(text.text, location, text.text)
    return from_json(out.source, text)[0]


def _dotted_node(
    tree: dict[str, object], path: tuple[str, ...], places: dict[tuple[str, ...], Flag], first: Flag
) -> Node:
    members = []
    for key, value in tree.items():
        flag = places.get((*path, key), first)
        node = value if isinstance(value, Node) else _dotted_node(value, (*path, key), places, flag)  # type: ignore[arg-type]
        members.append(Member(key=key, location=flag.location, node=node))
    return Node(kind="object", location=first.location, members=tuple(members))
