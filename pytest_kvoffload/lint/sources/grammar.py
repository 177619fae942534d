"""The tree-sitter grammars, each loaded once (making a ``Language`` anew for every parse is slow)."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from tree_sitter import Language, Parser, Tree


@cache
def language(name: Literal["bash", "json", "toml"]) -> Language:
    """Return a grammar."""
    if name == "bash":
        import tree_sitter_bash

        return Language(tree_sitter_bash.language())
    if name == "json":
        import tree_sitter_json

        return Language(tree_sitter_json.language())
    import tree_sitter_toml

    return Language(tree_sitter_toml.language())


def parse(name: Literal["bash", "json", "toml"], data: bytes) -> tuple[Tree, Any]:
    """Parse UTF-8 text; returns the tree (to be kept as long as its nodes are used) and its root node."""
    tree = Parser(language(name)).parse(data)
    return tree, tree.root_node
