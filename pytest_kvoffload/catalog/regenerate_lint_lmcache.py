"""Write ``catalog/lint/data/lmcache-VERSION.json`` from the sources of an LMCache: a new version is new data.

The package is read with :mod:`ast`, never imported::

    python -m pytest_kvoffload.catalog.regenerate_lint_lmcache --sources DIR --version 0.5.6

What is collected: the engine's configuration keys with their types (``v1/config.py``), the retired names that file
lists, every constant ``LMCACHE_...`` (the environment variables that are read by name), every constant
``lmcache.mp....`` (the connector's extra keys), and the options of ``lmcache server``.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

ENV_NAME = re.compile(r"LMCACHE_[A-Z0-9_]*[A-Z0-9]\Z")
MP_KEY = re.compile(r"lmcache\.mp\.[a-z0-9_.]*[a-z0-9]\Z")
SERVER_FOLDERS = ("v1/multiprocess", "v1/distributed", "v1/mp_observability", "cli")


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _dict_assigned(tree: ast.Module, name: str) -> ast.Dict:
    for node in ast.walk(tree):
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and node.targets:
            target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == name and isinstance(node, (ast.Assign, ast.AnnAssign)):
            assert isinstance(node.value, ast.Dict)
            return node.value
    raise SystemExit(f"no dictionary {name} in v1/config.py")


def config_keys(package: Path) -> dict[str, str]:
    """Return the engine's keys and their declared types, as written: ``Optional[str]``."""
    table = _dict_assigned(_parse(package / "v1/config.py"), "_CONFIG_DEFINITIONS")
    found: dict[str, str] = {}
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Dict):
            for inner, kind in zip(value.keys, value.values, strict=True):
                if isinstance(inner, ast.Constant) and inner.value == "type":
                    found[str(key.value)] = ast.unparse(kind)
    return found


def aliases(package: Path) -> dict[str, str]:
    """Return retired key names and what they were renamed to."""
    table = _dict_assigned(_parse(package / "v1/config.py"), "_CONFIG_ALIASES")
    return {
        str(k.value): str(v.value)
        for k, v in zip(table.keys, table.values, strict=True)
        if isinstance(k, ast.Constant) and isinstance(v, ast.Constant)
    }


def constants(package: Path, pattern: re.Pattern[str]) -> list[str]:
    """Return every string constant in the package that matches."""
    found: set[str] = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(_parse(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.match(node.value):
                found.add(node.value)
    return sorted(found)


def server_flags(package: Path) -> list[str]:
    """Return the long options of ``lmcache server``."""
    found: set[str] = set()
    for folder in SERVER_FOLDERS:
        for path in (package / folder).rglob("*.py"):
            for node in ast.walk(_parse(path)):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                    found.update(
                        a.value
                        for a in node.args
                        if isinstance(a, ast.Constant) and isinstance(a.value, str) and a.value.startswith("--")
                    )
    return sorted(found)


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description="Write the catalog of one LMCache version.")
    parser.add_argument("--sources", type=Path, required=True, help="folder that holds lmcache/")
    parser.add_argument("--version", required=True)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "lint" / "data")
    args = parser.parse_args()
    package = args.sources / "lmcache"
    data = {
        "version": args.version,
        "keys": config_keys(package),
        "aliases": aliases(package),
        "environment": constants(package, ENV_NAME),
        "mp_keys": constants(package, MP_KEY),
        "server_flags": server_flags(package),
    }
    target = args.output / f"lmcache-{args.version}.json"
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
