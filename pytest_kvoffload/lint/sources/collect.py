"""The builder that readers fill, and the small conversions that all of them need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.lint.model import (
    Config,
    Document,
    EnvVar,
    Launch,
    Limits,
    Location,
    Quantity,
    Suppression,
    Unresolved,
    Value,
)
from pytest_kvoffload.lint.sources.images import image_versions
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, Source, TooMuch

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.argv import Surroundings

MAX_STEPS = 120_000
MAX_LAUNCHES = 400

_IGNORE = re.compile(r"(?:#|//|<!--)\s*kvoffload:\s*ignore\[([A-Za-z0-9_,\s-]+)\]\s*(.*?)\s*(?:-->)?\s*$")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command line. ``spread``: an unresolved expansion that may be any number of words."""

    value: Mapped
    start: int
    end: int
    spread: bool = False
    quoted: bool = False

    @property
    def text(self) -> str:
        """The word as the process would see it (holes included)."""
        return self.value.text


def word_of(value: Mapped, *, spread: bool = False, quoted: bool = False) -> Word:
    """Make a word that is written where its text is."""
    return Word(value, value.at, max(value.end, value.at), spread, quoted)


@dataclass(slots=True)
class Collector:
    """What one read of one file gathers. Not a record: it is turned into one by :meth:`document`."""

    source: Source
    reader: str
    helm: bool = False
    markdown: bool = False
    launches: list[Launch] = field(default_factory=list)
    loose_configs: list[Config] = field(default_factory=list)
    loose_env: list[EnvVar] = field(default_factory=list)
    unresolved: list[Unresolved] = field(default_factory=list)
    problems: list[tuple[Location, str]] = field(default_factory=list)
    named_versions: list[tuple[str, Value]] = field(default_factory=list)
    embedded: list[str] = field(default_factory=list)
    """Outer formats, outermost first, while a language inside another is read."""
    steps: int = 0
    # What the outer format says about every launch found in an inner text (a script in a container's `args`).
    inherited_env: tuple[EnvVar, ...] = ()
    limits: Limits = field(default_factory=Limits)
    image: Value | None = None
    versions: dict[str, Value] = field(default_factory=dict)
    replicas: int = 1
    complete: bool = True
    env_complete: bool = True
    files: tuple[tuple[str, Mapped], ...] = ()

    @contextmanager
    def inside(self, around: Surroundings, image: Value | None) -> Iterator[None]:
        """Read an inner text whose launches run in the given surroundings."""
        saved: Any = (
            self.inherited_env, self.limits, self.image, self.versions, self.replicas,
            self.complete, self.env_complete, self.files,
        )  # fmt: skip
        versions = dict(self.versions)
        vllm, lmcache = image_versions(image)
        if vllm is not None or around.vllm_version is not None:
            versions["vllm"] = vllm or around.vllm_version  # type: ignore[assignment]
        if lmcache is not None or around.lmcache_version is not None:
            versions["lmcache"] = lmcache or around.lmcache_version  # type: ignore[assignment]
        self.inherited_env, self.limits, self.image = around.env, around.limits, image
        self.versions, self.replicas = versions, around.replicas
        self.complete, self.env_complete, self.files = around.complete, around.env_complete, around.files
        try:
            yield
        finally:
            (
                self.inherited_env, self.limits, self.image, self.versions, self.replicas,
                self.complete, self.env_complete, self.files,
            ) = saved  # fmt: skip

    def spend(self, amount: int = 1) -> None:
        """Count work; raise :class:`TooMuch` when the file asks for more than any real one does."""
        self.steps += amount
        if self.steps > MAX_STEPS:
            raise TooMuch

    def location(self, offset: int) -> Location:
        """Return the line and column of an outer offset."""
        return self.source.location(offset)

    def value(self, text: Mapped, *, start: int | None = None, end: int | None = None, quoted: bool = False) -> Value:
        """Make a value; a text with a hole is unresolved and carries no text."""
        begin = text.at if start is None else start
        stop = max(text.end, begin) if end is None else end
        raw = self.source.text[begin:stop] if 0 <= stop - begin <= len(text) * 6 + 200 else text.text
        certainty = text.certainty
        shown = None if certainty == "unresolved" else text.text
        return Value(text=shown, location=self.location(begin), certainty=certainty, raw=raw, quoted=quoted)

    def of_word(self, word: Word) -> Value:
        """Make a value of a command-line word."""
        return self.value(word.value, start=word.start, end=word.end, quoted=word.quoted)

    def add_version(self, package: str, value: Value) -> None:
        """Note that the text names a version of vLLM or LMCache; later launches of the text are taken to have it."""
        self.versions = {**self.versions, package: value}
        if (package, value) not in self.named_versions:
            self.named_versions.append((package, value))

    def add_launch(self, launch: Launch) -> None:
        """Keep a launch once, marked with the formats it is embedded in."""
        if self.embedded and not launch.embedded_in:
            launch = replace(launch, embedded_in="/".join(dict.fromkeys(self.embedded)))
        if launch not in self.launches and len(self.launches) < MAX_LAUNCHES:
            self.launches.append(launch)

    def add_unresolved(self, offset: int, reason: str) -> None:
        """Note what cannot be known without running something (once a place)."""
        note = Unresolved(location=self.location(offset), reason=reason)
        if note not in self.unresolved and len(self.unresolved) < MAX_LAUNCHES:
            self.unresolved.append(note)

    def add_problem(self, offset: int, message: str) -> None:
        """Note a fact about the text itself (once a place)."""
        problem = (self.location(offset), message)
        if problem not in self.problems and len(self.problems) < MAX_LAUNCHES:
            self.problems.append(problem)

    def _loose(self) -> list[Config]:
        """Return the configurations that no launch has taken, each place once."""
        seen = {config.location for launch in self.launches for config in launch.configs}
        result = []
        for config in self.loose_configs:
            if config.location not in seen:
                seen.add(config.location)
                result.append(config)
        return result

    def document(self) -> Document:
        """Freeze what was gathered."""
        return Document(
            path=self.source.path,
            reader=self.reader,
            launches=tuple(self.launches),
            loose_configs=tuple(self._loose()),
            loose_env=tuple(self.loose_env),
            unresolved=tuple(self.unresolved),
            suppressions=tuple(find_suppressions(self.source)),
            problems=tuple(self.problems),
            text=self.source.text,
            versions=tuple(self.named_versions),
        )


def find_suppressions(source: Source) -> Iterable[Suppression]:
    """Find ``# kvoffload: ignore[CODE] reason``: for its own line, or, alone on a line, for the next one."""
    if "kvoffload:" not in source.text:
        return
    for number in range(1, len(source.starts) + 1):
        line = source.line_text(number)
        match = _IGNORE.search(line) if "kvoffload:" in line else None
        if match is None:
            continue
        alone = not line[: match.start()].strip()
        codes = tuple(c.strip() for c in match.group(1).split(",") if c.strip())
        yield Suppression(
            codes=codes,
            reason=match.group(2),
            location=source.location(source.starts[number - 1] + match.start()),
            applies_to_line=_next_line(source, number) if alone else number,
        )


def _next_line(source: Source, number: int) -> int:
    """Return the next line that is not a suppression itself (several may be stacked)."""
    following = number + 1
    while following <= len(source.starts):
        line = source.line_text(following)
        match = _IGNORE.search(line)
        if match is None or line[: match.start()].strip():
            break
        following += 1
    return following


_SIZE = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*$")
_BINARY: dict[str, float] = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_KUBERNETES: dict[str, float] = {
    "": 1,
    "m": 10**-3,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_WITH_B = {unit + suffix: factor for unit, factor in _BINARY.items() for suffix in ("", "b", "ib")}
_DIALECTS: dict[str, dict[str, float]] = {
    "kubernetes": _KUBERNETES,
    "docker": {"": 1, "b": 1, **_WITH_B},
    "slurm": {"": 2**20, **_WITH_B},
    "systemd": {"": 1, **_WITH_B},
}


def quantity(out: Collector, text: Mapped, dialect: str) -> Quantity:
    """Read a size. ``dialect``: ``kubernetes`` (Gi binary, G decimal), ``docker`` (both binary), ``slurm`` (bare is
    MiB), ``systemd`` (bare is bytes)."""
    table = _DIALECTS[dialect]
    match = _SIZE.match(text.text)
    size: int | None = None
    if match:
        unit = match.group(2) if dialect == "kubernetes" else match.group(2).lower()
        factor = table.get(unit)
        number = float(match.group(1))
        if factor is not None and number < 1e30:
            size = int(number * factor)
    raw = text.text if HOLE not in text.text else out.source.text[text.at : text.end]
    return Quantity(bytes=size, location=out.location(text.at), raw=raw)


_COMMAND_LIKE = re.compile(
    r"^\s*(?:[-$>]\s*)?(?:--?[A-Za-z][\w.-]*(?:[= ]|$)|-\s|export\s|vllm\s|python3?\s|docker\s|sglang|lmcache\s|srun\s|"
    r"pip3?\s|[A-Z_][A-Z0-9_]*=|[\w-]+:\s*[\[{\"']|[\[{\"'])"
)


def prose(text: str) -> bool:
    """Tell a sentence from a command that was commented out: only sentences say what someone wants."""
    stripped = text.lstrip("#/*; \t").strip()
    return (
        bool(stripped)
        and not _COMMAND_LIKE.match(stripped)
        and not stripped.startswith(("SBATCH", "PBS", "BSUB", "syntax="))
    )


def file_words(out: Collector) -> list[Value]:
    """Return the file's own name as a word (its place is the file's first character)."""
    name = out.source.path.replace("\\", "/").rsplit("/", 1)[-1]
    return [Value(text=name, location=Location(path=out.source.path, line=1, column=1), raw=name)]


_COMMENT = re.compile(r"(?:^|\s)#(?!!)(.*)$")


def comments_near(out: Collector, first: int, last: int, *, before: int = 8, header: int = 6) -> list[Value]:
    """Return the ``#`` comments that are prose: in the file's header, up to ``before`` lines above, and inside.

    Lines are 1-based. Meant for formats whose comment sign is ``#``; a ``#`` inside a word does not count.
    """
    words: list[Value] = []
    chosen = sorted({*range(1, header + 1), *range(max(1, first - before), last + 2)})
    for number in chosen:
        if number > len(out.source.starts):
            break
        line = out.source.line_text(number)
        match = _COMMENT.search(line) if len(line) < 2000 else None
        if match and prose(match.group(1)):
            at = out.source.starts[number - 1] + match.start(1)
            words.append(Value(text=match.group(1).strip(), location=out.location(at), raw=match.group(1)))
    return words
