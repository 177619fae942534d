"""What the shell reader knows at one point of a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_kvoffload.lint.model import EnvVar
from pytest_kvoffload.lint.sources.collect import Collector, Word
from pytest_kvoffload.lint.sources.text import Mapped, hole, join

INTERESTING = (
    "LMCACHE_",
    "LM_CACHE",
    "LMCACHE",
    "VLLM_",
    "PYTHONHASHSEED",
    "PYTORCH_",
    "PROMETHEUS_",
    "SGLANG_",
    "HICACHE",
    "NIXL_",
    "MOONCAKE",
)
"""Prefixes of variables that matter to a server even when they are never exported."""


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A shell variable: one word, or several for an array."""

    words: tuple[Word, ...]
    at: int
    end: int
    array: bool = False
    exported: bool = False
    origin: str = "assignment"

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two values the same for the script."""
        return (tuple((w.text, w.start) for w in self.words), self.exported, self.origin)

    @property
    def scalar(self) -> Mapped:
        """The value of ``$NAME`` (an array gives its first element)."""
        if not self.words:
            return Mapped("", (), self.at)
        return self.words[0].value


@dataclass(slots=True, eq=False)
class State:
    """Variables, functions, and files of one path through the script."""

    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    files: list[tuple[str, Mapped]] = field(default_factory=list)
    positional: tuple[Word, ...] | None = None
    decisions: dict[str, int] = field(default_factory=dict)
    expanded: set[str] = field(default_factory=set)
    allexport: bool = False
    env_complete: bool = True
    dead: bool = False
    broken: bool = False
    """A line continuation was lost just above."""

    def copy(self) -> State:
        """Return a state that can go its own way."""
        return State(
            dict(self.variables),
            dict(self.functions),
            list(self.files),
            self.positional,
            dict(self.decisions),
            set(self.expanded),
            self.allexport,
            self.env_complete,
            self.dead,
            self.broken,
        )

    def fingerprint(self) -> tuple[object, ...]:
        """Equal for states that cannot be told apart by what follows."""
        return (
            tuple((name, var.key) for name, var in sorted(self.variables.items())),
            tuple((name, node.start_byte) for name, (node, _) in sorted(self.functions.items())),
            tuple((name, text.at, len(text)) for name, text in self.files),
            tuple((w.text, w.start) for w in self.positional) if self.positional is not None else None,
            self.allexport,
            self.env_complete,
        )

    def assign(self, name: str, variable: Variable, *, append: bool = False) -> None:
        """Set or append; an exported variable stays exported."""
        old = self.variables.get(name)
        exported = variable.exported or self.allexport or (old is not None and old.exported)
        origin = "export" if exported else variable.origin
        words = variable.words
        array = variable.array
        if append and old is not None:
            if variable.array or old.array:
                words, array = (old.words + variable.words)[:2000], True
            else:
                words = (Word(join([old.scalar, variable.scalar], at=old.at), variable.at, variable.end),)
        elif append and old is None:
            # What was there before is unknown: `PYTHONPATH+=...`, or an array of a sourced file.
            lead = Word(hole(variable.at), variable.at, variable.at, spread=True)
            words = (lead, *variable.words) if variable.array else variable.words
        self.variables[name] = Variable(words, variable.at, variable.end, array, exported, origin)

    def environment(self, out: Collector) -> list[EnvVar]:
        """Return the variables near a launch; ``reaches`` is whether a child process sees them."""
        result: list[EnvVar] = []
        for name, variable in self.variables.items():
            if not variable.exported and not name.startswith(INTERESTING):
                continue
            if variable.array or not variable.words:
                continue
            origin = variable.origin
            if not variable.exported and name in self.expanded:
                origin = "assignment (expanded)"
            result.append(env_var(out, name, variable.at, variable.words[0], origin, variable.exported))
        return result


def env_var(out: Collector, name: str, at: int, word: Word, origin: str, reaches: bool = True) -> EnvVar:
    """Make the record of one variable."""
    return EnvVar(name=name, location=out.location(at), value=out.of_word(word), reaches=reaches, origin=origin)
