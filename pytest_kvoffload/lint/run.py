"""Runs the rules over one document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Location, Severity, Unresolved
from pytest_kvoffload.lint.registry import Entry, entries
from pytest_kvoffload.lint.suppress import UNUSED, apply_suppressions

LEVELS: dict[Severity, int] = {"note": 0, "warning": 1, "error": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to check and for which versions."""

    select: frozenset[str] | None = None
    """Codes to check; ``None`` is all (pedantic ones only with ``pedantic``)."""
    ignore: frozenset[str] = frozenset()
    severity: Severity = "warning"
    """Findings below it are dropped."""
    pedantic: bool = False
    vllm_version: str | None = None
    lmcache_version: str | None = None
    markdown: bool = False
    helm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The findings of one file and what could not be read."""

    path: str
    text: str
    diagnostics: tuple[Diagnostic, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    unresolved_launches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one run over many files, for the renderers."""

    files: tuple[FileResult, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Path and reason of files that could have mattered and were not read."""
    seen: int = 0
    """Files looked at."""

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All findings, file by file."""
        return tuple(d for f in self.files for d in f.diagnostics)

    @property
    def unresolved(self) -> tuple[Unresolved, ...]:
        """All notes about what cannot be known statically."""
        return tuple(u for f in self.files for u in f.unresolved)

    @property
    def unresolved_launches(self) -> int:
        """Launches that could not be read statically."""
        return sum(f.unresolved_launches for f in self.files)

    def count(self, severity: Severity) -> int:
        """Return how many findings have that severity."""
        return sum(1 for d in self.diagnostics if d.severity == severity)


def active_entries(options: Options) -> dict[str, Entry]:
    """Return the rules that the options leave."""
    chosen = {}
    for code, entry in entries().items():
        named = options.select is not None and code in options.select
        if options.select is not None and not named:
            continue
        if code in options.ignore or (entry.rule.pedantic and not options.pedantic and not named):
            continue
        chosen[code] = entry
    return chosen


def lint_document(document: Document, options: Options) -> FileResult:
    """Check one document: every launch, its loose settings, and its text."""
    active = active_entries(options)
    found: list[Diagnostic] = []
    for launch in [*document.launches, *_loose(document)]:
        found.extend(_launch(document, launch, options, active))
    for entry in active.values():
        if entry.check_document is not None:
            found.extend(entry.check_document(document))
    unique = _deduplicate(found)
    if document.suppressions:
        unique = apply_suppressions(document, unique, active=frozenset(active))
    kept = [
        d for d in unique if LEVELS[d.severity] >= LEVELS[options.severity] and (d.code in active or d.code != UNUSED)
    ]
    kept.sort(key=lambda d: (d.location.line, d.location.column, d.code, d.message))
    return FileResult(
        path=document.path,
        text=document.text,
        diagnostics=tuple(kept),
        unresolved=document.unresolved,
        unresolved_launches=unresolved_launches(document),
    )


def _launch(document: Document, launch: Launch, options: Options, active: dict[str, Entry]) -> Iterator[Diagnostic]:
    context = Context(
        document,
        launch,
        vllm_version=options.vllm_version,
        lmcache_version=options.lmcache_version,
        pedantic=options.pedantic,
    )
    for entry in active.values():
        if entry.check is None or launch.product not in entry.rule.products:
            continue
        if launch.product == "unknown" and not entry.rule.loose and launch.source == "loose":
            continue
        yield from entry.check(document, launch, context)


def _loose(document: Document) -> Iterator[Launch]:
    """Settings that belong to no launch are judged as one that says nothing else."""
    if document.loose_env or document.loose_configs:
        yield Launch(
            product="unknown",
            location=Location(path=document.path, line=1),
            source="loose",
            env=document.loose_env,
            configs=document.loose_configs,
            complete=False,
            env_complete=False,
        )


def _deduplicate(found: list[Diagnostic]) -> list[Diagnostic]:
    """Keep one of several equal findings: branches and aliases make several launches of one line."""
    best: dict[tuple[str, Location], Diagnostic] = {}
    for diagnostic in found:
        key = (diagnostic.code, diagnostic.location)
        before = best.get(key)
        if before is None or LEVELS[diagnostic.severity] > LEVELS[before.severity]:
            best[key] = diagnostic
        elif before.message != diagnostic.message and diagnostic.severity == before.severity:
            best[(diagnostic.code + diagnostic.message, diagnostic.location)] = diagnostic
    return list(best.values())


def unresolved_launches(document: Document) -> int:
    """Count the launches that could not be read whole, and files that may hold one and could not be read."""
    partial = sum(1 for launch in document.launches if _partial(launch))
    return partial if document.launches else min(1, len(document.unresolved))


def _partial(launch: Launch) -> bool:
    if launch.source == "vllm-config-yaml":
        return False
    return not launch.complete or any(c.node.kind == "unresolved" for c in launch.configs)


def shift(diagnostic: Diagnostic, path: str) -> Diagnostic:
    """Return the diagnostic with another path."""
    return replace(diagnostic, location=replace(diagnostic.location, path=path))
