"""What the reference page is made of: fields, fixtures and signatures, read from the sources that declare them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a record, as its source says it."""

    name: str
    type: str
    default: str | None
    doc: str


def fields_of(path: Path, name: str) -> list[Field]:
    """Return the fields of a class from its source: only there stand the sentences below them."""
    tree = tree_of(path)
    aliases = _aliases(tree)
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    found: list[Field] = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]  # a member of an enumeration
        if not isinstance(target, ast.Name):
            continue
        value = node.value if isinstance(node, ast.AnnAssign | ast.Assign) else None
        doc = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            doc = str(following.value.value)
        kind = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        kind = re.sub(r"\w+", lambda word: aliases.get(word[0], word[0]), kind)
        found.append(
            Field(name=target.id, type=kind, default=_default(value), doc=first_paragraph(inspect.cleandoc(doc)))
        )
    return found


def docstring_table(module: ModuleType, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return the rows of the table in a module's docstring; each name must have one."""
    rows = dict(re.findall(r"^``(\w+)``\s+(.+)$", module.__doc__ or "", flags=re.MULTILINE))
    for name in names:
        yield f"`{name}`", rows[name]


def first_paragraph(doc: str) -> str:
    """Return the first paragraph in one line, in Markdown."""
    text = " ".join(doc.strip().split("\n\n")[0].split())
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`").rstrip(".")


def parameters(function: Any) -> str:
    """Return a signature's parameters as they are written, without the return type."""
    shown, keyword_only = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            shown.append("*")
        text = parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        shown.append(text)
    return ", ".join(shown)


def fixtures(path: Path, names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Return name, scope, type and first sentence of the fixtures of a module."""
    wanted = set(names)
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            marker = node.decorator_list[0]
            scope = "function"
            if isinstance(marker, ast.Call):
                scope = next((ast.literal_eval(k.value) for k in marker.keywords if k.arg == "scope"), scope)
            gives = "" if node.returns is None else ast.unparse(node.returns)
            gives = re.sub(r"^Iterator\[(.*)\]$", r"\1", gives)
            yield f"`{node.name}`", scope, f"`{gives}`", first_paragraph(ast.get_docstring(node) or "")


def tree_of(path: Path) -> ast.Module:
    """Parse a source file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return what the file's type aliases stand for, literals spelt out."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias" and node.value is not None:
            text = ast.unparse(node.value)
            literal = re.fullmatch(r"Literal\[(.*)\]", text)
            found[ast.unparse(node.target)] = " | ".join(literal[1].split(", ")) if literal else text
    return found


def _default(value: ast.expr | None) -> str | None:
    if value is None:
        return None
    text = ast.unparse(value)
    return {"field(default_factory=dict)": "{}", "field(default_factory=tuple)": "()"}.get(text, text)


class Recorder:
    """Stands in for pytest's parser, and remembers what is declared."""

    def __init__(self) -> None:
        self.options: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []
        self.ini: list[tuple[str, str]] = []

    def getgroup(self, *_: str) -> Recorder:
        return self

    def addoption(self, *words: str, **given: Any) -> None:
        self.options.append((words, given))

    def addini(self, name: str, text: str, **_: Any) -> None:
        self.ini.append((name, text))
