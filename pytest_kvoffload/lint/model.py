"""The neutral record of a server launch that every reader fills and every rule reads.

A reader turns one file into :class:`Document`: the launches found in it, the loose settings that belong to no
launch yet (an LMCache YAML, a ConfigMap), and what could not be read. Every value carries its place and its
certainty; a rule never claims anything about a value that is ``unresolved``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Certainty: TypeAlias = Literal["known", "default", "unresolved"]
"""``known``: written there. ``default``: the fallback of ``${VAR:-default}``. ``unresolved``: a run-time value."""

Product: TypeAlias = Literal["vllm", "lmcache-server", "sglang", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place in a file. ``line`` and ``column`` are 1-based; column counts characters."""

    path: str
    line: int
    column: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A scalar as the process would see it. ``text`` is ``None`` only when ``unresolved``."""

    text: str | None
    location: Location
    certainty: Certainty = "known"
    raw: str = ""
    """As written in the file, for carets and fixes."""
    quoted: bool = False
    """Whether it was a JSON/YAML string (``"8G"``) where a bare number or boolean could have stood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A position-carrying tree (JSON, YAML, dotted keys): ``kind`` says which of the fields counts."""

    kind: Literal["object", "array", "string", "number", "boolean", "null", "unresolved"]
    location: Location
    value: Any = None
    """Python scalar for string (str), number (int/float), boolean (bool); ``None`` otherwise."""
    raw: str = ""
    items: tuple[Node, ...] = ()
    members: tuple[Member, ...] = ()
    """In file order, duplicates kept."""

    def get(self, key: str) -> Node | None:
        """Return the last member of that name (as JSON and YAML parsers keep it)."""
        for member in reversed(self.members):
            if member.key == key:
                return member.node
        return None

    def member(self, key: str) -> Member | None:
        """Like :meth:`get`, with the key's own location."""
        for member in reversed(self.members):
            if member.key == key:
                return member
        return None

    def plain(self) -> Any:
        """Return ordinary Python data (unresolved values become ``None``)."""
        if self.kind == "object":
            return {m.key: m.node.plain() for m in self.members}
        if self.kind == "array":
            return [n.plain() for n in self.items]
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One ``key: value`` of an object node."""

    key: str
    location: Location
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One command-line flag as given. ``name`` is as written, without the value: ``--cpu-offload-gb``."""

    name: str
    location: Location
    value: Value | None = None
    """``None`` for a flag without value."""
    joined: bool = False
    """``True`` for ``--flag=value``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """One environment variable that is set near the launch."""

    name: str
    location: Location
    value: Value
    reaches: bool = True
    """Whether the server's process sees it (``False``: a shell assignment that is never exported)."""
    origin: str = ""
    """``export``, ``prefix``, ``assignment``, ``docker -e``, ``kubernetes env``, ``ENV``, ``os.environ`` ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A size limit in bytes with its place; ``bytes`` is ``None`` when it could not be read."""

    bytes: int | None
    location: Location
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A volume of the launch's container. ``kind``: ``emptyDir``, ``emptyDir-memory``, ``pvc``, ``hostPath`` ..."""

    mount_path: str
    kind: str
    location: Location
    size_limit: Quantity | None = None
    shared: bool = False
    """Whether other pods or hosts can see the same files (a claim, NFS, a host path)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A structured configuration that belongs to a launch."""

    kind: Literal[
        "kv-transfer-config",  # JSON of the flag, or the keyword argument
        "kv-transfer-dotted",  # tree built from --kv-transfer-config.a.b flags
        "kv-events-config",
        "vllm-config-yaml",  # the file behind `vllm serve --config FILE`
        "lmcache-yaml",
        "helm-model-spec",  # one item of servingEngineSpec.modelSpec[]
        "kvoffload-connector",  # one table [connectors.NAME] of our own configuration, as written
    ]
    node: Node
    location: Location
    text: str | None = None
    error: str | None = None
    """Why the text is no legal JSON, with its location in ``location``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the container or unit may use."""

    memory_limit: Quantity | None = None
    memory_request: Quantity | None = None
    shm: Quantity | None = None
    """Size of /dev/shm: ``--shm-size``, ``shm_size``, or an emptyDir of medium Memory mounted there."""
    ipc_host: bool = False
    container: bool = False
    """Whether the launch runs in a container at all (without ``shm`` docker gives 64 MiB)."""
    container_kind: str = ""
    """``docker``, ``compose``, ``kubernetes`` ..."""
    mounts: tuple[Mount, ...] = ()
    memlock_unlimited: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server launch found in a file, whatever the format."""

    product: Product
    location: Location
    source: str
    """Reader that made it: ``shell``, ``dockerfile``, ``compose``, ``kubernetes``, ``helm``, ``python`` ..."""
    flags: tuple[Flag, ...] = ()
    env: tuple[EnvVar, ...] = ()
    configs: tuple[Config, ...] = ()
    limits: Limits = field(default_factory=Limits)
    model: Value | None = None
    image: Value | None = None
    vllm_version: Value | None = None
    """Version as text (``0.28.0``) from the image tag or a requirement, ``None`` when unknown."""
    lmcache_version: Value | None = None
    replicas: int = 1
    words: tuple[Value, ...] = ()
    """Comments, names, titles, file name and echo texts around the launch: where intent is said in prose."""
    complete: bool = True
    """``False`` when part of the command line is a run-time value (``"$@"``, ``$(...)``)."""
    env_complete: bool = True
    """``False`` when variables may come from elsewhere (an env file, a sourced script, an external ConfigMap)."""
    embedded_in: str = ""
    """Outer format when this is a language inside another (``shell`` inside ``kubernetes``)."""

    def flag(self, *names: str) -> Flag | None:
        """Return the last flag given under any of the names (underscores and hyphens count as the same)."""
        wanted = {n.replace("_", "-") for n in names}
        for flag in reversed(self.flags):
            if flag.name.replace("_", "-") in wanted:
                return flag
        return None

    def env_var(self, name: str) -> EnvVar | None:
        """Return the last setting of that variable that reaches the server, else the last one at all."""
        hits = [v for v in self.env if v.name == name]
        reaching = [v for v in hits if v.reaches]
        return (reaching or hits or [None])[-1]  # type: ignore[list-item]

    def config(self, kind: str) -> Config | None:
        """Return the last configuration of that kind."""
        for config in reversed(self.configs):
            if config.kind == kind:
                return config
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """An inline ``# kvoffload: ignore[KVO101,KVO102] reason``."""

    codes: tuple[str, ...]
    reason: str
    location: Location
    applies_to_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A launch, or a part of one, that cannot be known without running something."""

    location: Location
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Everything one reader found in one file."""

    path: str
    reader: str
    launches: tuple[Launch, ...] = ()
    loose_configs: tuple[Config, ...] = ()
    loose_env: tuple[EnvVar, ...] = ()
    """Variables of ConfigMaps, ``.env`` files and Dockerfile ENV without a launch."""
    unresolved: tuple[Unresolved, ...] = ()
    suppressions: tuple[Suppression, ...] = ()
    problems: tuple[tuple[Location, str], ...] = ()
    """Facts about the text itself: a missing backslash, a duplicate YAML key, a blank after a backslash."""
    text: str = ""
    versions: tuple[tuple[str, Value], ...] = ()
    """(``vllm`` or ``lmcache``, version) that the text names: requirements, lock files, ``pip install`` lines."""


Severity: TypeAlias = Literal["error", "warning", "note"]
Confidence: TypeAlias = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A mechanical fix: replace the characters of one line range."""

    location: Location
    end_line: int
    end_column: int
    """Exclusive."""
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding. ``message`` says what is wrong, ``remedy`` what to write instead."""

    code: str
    name: str
    severity: Severity
    confidence: Confidence
    location: Location
    message: str
    remedy: str
    versions: str = ""
    """For which versions it holds, when that matters."""
    evidence: str = ""
    fix: tuple[Edit, ...] = ()
