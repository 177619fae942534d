"""TOML text to the same tree as YAML, from tree-sitter-toml, so that readers share their code."""

from __future__ import annotations

import sys
from typing import Any

from pytest_kvoffload.lint.sources.grammar import parse
from pytest_kvoffload.lint.sources.text import Mapped, align
from pytest_kvoffload.lint.sources.tree import char_index
from pytest_kvoffload.lint.sources.yamltree import YNode

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TAGS = {"integer": "int", "float": "float", "boolean": "bool"}


def read_toml(text: Mapped) -> YNode:
    """Parse TOML into a mapping; what is not TOML is left out."""
    return _Builder(text).build()


class _Builder:
    def __init__(self, text: Mapped) -> None:
        self.text = text
        self.data = text.text.encode("utf-8", "replace")
        self.index = char_index(text.text, self.data)

    def build(self) -> YNode:
        _tree, tree = parse("toml", self.data)
        root = YNode("map", self.text[:0], self.text.end)
        for child in tree.named_children:
            if child.type == "pair":
                self.pair(child, root)
            elif child.type in ("table", "table_array_element"):
                self.table(child, root)
        return root

    def slice(self, node: Any) -> Mapped:
        start, stop = node.start_byte, node.end_byte
        if self.index is not None:
            start, stop = self.index[start], self.index[stop]
        return self.text[start:stop]

    def table(self, node: Any, root: YNode) -> None:
        """``[a.b]`` and ``[[a.b]]``."""
        children = node.named_children
        if not children:
            return
        keys = self.keys(children[0])
        target = root
        for depth, key in enumerate(keys):
            is_last = depth == len(keys) - 1
            target = self.step(target, key, node.type == "table_array_element" and is_last)
        for child in children[1:]:
            if child.type == "pair":
                self.pair(child, target)
        target.end = max(target.end, self.slice(node).end)

    def step(self, target: YNode, key: YNode, element: bool) -> YNode:
        """Go one key down, making what is missing; arrays of tables lead to their last element."""
        found = target.get(key.scalar)
        if element:
            if found is None or found.kind != "seq":
                found = YNode("seq", key.text[:0])
                target.pairs.append((key, found))
            found.items.append(YNode("map", key.text[:0]))
            return found.items[-1]
        if found is not None and found.kind == "seq" and found.items:
            return found.items[-1]
        if found is None or found.kind != "map":
            found = YNode("map", key.text[:0])
            target.pairs.append((key, found))
        return found

    def keys(self, node: Any) -> list[YNode]:
        """Return the parts of a (dotted) key."""
        if node.type == "dotted_key":
            return [key for child in node.named_children for key in self.keys(child)][:40]
        text = self.slice(node)
        if node.type == "quoted_key":
            text = text[1:-1]
        return [YNode("scalar", text, text.end, quoted=node.type == "quoted_key")]

    def pair(self, node: Any, target: YNode) -> None:
        """``a.b = value``."""
        children = [c for c in node.named_children if c.type != "comment"]
        if len(children) < 2:
            return
        keys = self.keys(children[0])
        for key in keys[:-1]:
            target = self.step(target, key, False)
        if keys:
            target.pairs.append((keys[-1], self.value(children[1], 0)))

    def value(self, node: Any, depth: int) -> YNode:
        """Return the node of a value."""
        text = self.slice(node)
        if node.type == "array" and depth < 40:
            array = YNode("seq", text[:0], text.end)
            array.items = [self.value(c, depth + 1) for c in node.named_children if c.type not in ("comment", "ERROR")]
            return array
        if node.type == "inline_table" and depth < 40:
            table = YNode("map", text[:0], text.end)
            for child in node.named_children:
                if child.type == "pair":
                    self.pair(child, table)
            return table
        if node.type == "string":
            return YNode("scalar", _decoded(text), text.end, "tag:yaml.org,2002:str", True)
        tag = "tag:yaml.org,2002:" + _TAGS.get(node.type, "str")
        clean = text.text.replace("_", "") if node.type in ("integer", "float") else text.text
        return YNode("scalar", text if clean == text.text else align(text, clean, skip="_"), text.end, tag)


def _decoded(text: Mapped) -> Mapped:
    try:
        value = tomllib.loads("x = " + text.text)["x"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        return text[1:-1]
    width = 3 if text.text[:3] in ('"""', "'''") else 1
    return align(text[width : len(text) - width], str(value), escapes=text.text[:1] == '"')
