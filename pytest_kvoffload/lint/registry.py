"""Finds the rules: every module ``rules/kvoNNN_*.py`` with a ``RULE`` is one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pytest_kvoffload.errors import UsageError, did_you_mean
from pytest_kvoffload.lint import rules as rules_package
from pytest_kvoffload.lint.rule import Check, DocumentCheck, Rule

REMOVED_CODES: Mapping[str, str] = {}
"""Codes that existed once, and why they went: a code is never given to another rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A rule with its functions and its page."""

    rule: Rule
    page: str
    check: Check | None = None
    check_document: DocumentCheck | None = None


@lru_cache(maxsize=1)
def entries() -> Mapping[str, Entry]:
    """Return all rules by code, in order."""
    found: dict[str, Entry] = {}
    for info in pkgutil.iter_modules(rules_package.__path__):
        if not info.name.startswith("kvo"):
            continue
        module = importlib.import_module(f"{rules_package.__name__}.{info.name}")
        rule: Rule = module.RULE
        if rule.code in found:
            raise ValueError(f"two rules have the code {rule.code}")
        found[rule.code] = Entry(
            rule=rule,
            page=inspect.cleandoc(module.__doc__ or ""),
            check=getattr(module, "check", None),
            check_document=getattr(module, "check_document", None),
        )
    return dict(sorted(found.items()))


def resolve(words: Iterable[str], option: str) -> frozenset[str]:
    """Return the codes that codes, prefixes (``KVO1``) and names stand for.

    Raises:
        UsageError: a word that is none of them; the message names the closest.
    """
    known = entries()
    names = {entry.rule.name: code for code, entry in known.items()}
    chosen: set[str] = set()
    for word in words:
        upper = word.strip().upper()
        hits = {code for code in known if code.startswith(upper)} if upper.startswith("KVO") else set()
        if upper == "ALL":
            hits = set(known)
        if word.strip().lower() in names:
            hits = {names[word.strip().lower()]}
        if not hits:
            gone = REMOVED_CODES.get(upper)
            hint = f": {gone}" if gone else did_you_mean(word, [*known, *names])
            raise UsageError(f"{option}: no rule {word!r}{hint}; kvoffload rules lists them")
        chosen |= hits
    return frozenset(chosen)
