"""Write ``catalog/lint/data/vllm-VERSION.json`` from the sources of a vLLM: a new version is new data.

The package is read with :mod:`ast`, never imported, so any unpacked wheel will do::

    python -m pytest_kvoffload.catalog.regenerate_lint_vllm --sources DIR   # DIR holds the folder vllm/
    python -m pytest_kvoffload.catalog.regenerate_lint_vllm                 # the vllm of this interpreter

What is collected: every ``--flag`` that the server's parser knows, the connectors that the factory registers, the
fields of ``KVTransferConfig``, the keys that each connector module reads out of ``kv_connector_extra_config``, the
secondary tiers that the tiering factory registers, and the environment variables of ``envs.py``.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

FLAG_FILES = (
    "engine/arg_utils.py",
    "entrypoints/launchers/cli_args.py",
    "entrypoints/openai/cli_args.py",
    "entrypoints/utils.py",
    "entrypoints/cli/serve.py",
    "utils/argparse_utils.py",
)
DATACLASS_FLAGS = {"BaseFrontendArgs", "FrontendArgs"}
GETTERS = {"get", "get_from_extra_config"}


def _trees(folder: Path, names: tuple[str, ...] | None = None) -> Iterator[tuple[Path, ast.Module]]:
    paths = [folder / n for n in names] if names else sorted(folder.rglob("*.py"))
    for path in paths:
        if path.is_file():
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def _strings(nodes: list[ast.expr]) -> list[str]:
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def flags(package: Path) -> list[str]:
    """Return the long options of ``vllm serve``, sorted, each with its ``--no-`` twin where argparse makes one."""
    found: set[str] = set()
    for _path, tree in _trees(package, FLAG_FILES):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                found.update(s for s in _strings(node.args) if s.startswith("--"))
            elif isinstance(node, ast.ClassDef) and node.name in DATACLASS_FLAGS:
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                        found.add("--" + item.target.id.replace("_", "-"))
    return sorted(found)


def connectors(package: Path) -> list[str]:
    """Return the names that ``KVConnectorFactory.register_connector`` is called with."""
    path = package / "distributed/kv_transfer/kv_connector/factory.py"
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "register_connector":
            found.update(_strings(node.args[:1]))
    return sorted(found)


def transfer_keys(package: Path) -> list[str]:
    """Return the fields of ``KVTransferConfig``."""
    path = package / "config/kv_transfer.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == "KVTransferConfig":
            return sorted(
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )
    raise SystemExit(f"{path}: no class KVTransferConfig")


def extra_keys(package: Path) -> dict[str, list[str]]:
    """Return, per source file, the constant keys that are read out of something called ``...extra_config``."""
    found: dict[str, set[str]] = {}
    for folder in ("distributed/kv_transfer/kv_connector/v1", "v1/kv_offload"):
        for path, tree in _trees(package / folder):
            keys: set[str] = set()
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in GETTERS and node.args:
                    owner = ast.unparse(node.func)
                    if "extra_config" in owner or owner.endswith("get_from_extra_config"):
                        keys.update(_strings(node.args[:1]))
                elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("extra_config"):
                    keys.update(_strings([node.slice]))
            if keys:
                found[str(path.relative_to(package))] = keys
    return {name: sorted(keys) for name, keys in sorted(found.items())}


def tiers(package: Path) -> list[str]:
    """Return the secondary tier types that ``SecondaryTierFactory`` registers."""
    found: set[str] = set()
    for _path, tree in _trees(package / "v1/kv_offload/tiering", ("factory.py",)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("register"):
                found.update(_strings(node.args[:1]))
    return sorted(found)


def environment(package: Path) -> list[str]:
    """Return the names of ``environment_variables`` in ``envs.py``."""
    path = package / "envs.py"
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            found.update(k for k in _strings([k for k in node.keys if k is not None]) if k.startswith("VLLM_"))
    return sorted(found)


def collect(package: Path, version: str) -> dict[str, object]:
    """Return everything about one version as plain data."""
    return {
        "version": version,
        "flags": flags(package),
        "connectors": connectors(package),
        "transfer_keys": transfer_keys(package),
        "extra_keys": extra_keys(package),
        "tiers": tiers(package),
        "environment": environment(package),
    }


def _installed() -> Path:
    for entry in sys.path:
        if (Path(entry) / "vllm" / "envs.py").is_file():
            return Path(entry)
    raise SystemExit("no vllm in this interpreter: give --sources DIR with an unpacked wheel")


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description="Write the catalog of one vLLM version.")
    parser.add_argument("--sources", type=Path, help="folder that holds vllm/ (default: the installed one)")
    parser.add_argument("--version", required=True, help="version of those sources, such as 0.32.0")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "lint" / "data")
    args = parser.parse_args()
    package = (args.sources or _installed()) / "vllm"
    target = args.output / f"vllm-{args.version}.json"
    target.write_text(json.dumps(collect(package, args.version), indent=1) + "\n", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
