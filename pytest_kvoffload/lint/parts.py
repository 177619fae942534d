"""The parts of a launch that rules speak about: its version, connectors, LMCache settings and tier sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.model import Launch, Location, Member, Node, Value
from pytest_kvoffload.lint.numbers import known_text, node_number

LMCACHE_ENV = "LMCACHE_"


@dataclass(frozen=True, slots=True)
class Known:
    """A version, or the fact that it is unknown. Comparisons answer ``None`` for "cannot say"."""

    exact: Version | None = None

    def before(self, version: str) -> bool | None:
        """Whether it is older than ``version`` (compared by release, so that rc and post builds count as it)."""
        if self.exact is None:
            return None
        return Version(self.exact.base_version) < Version(version)

    def at_least(self, version: str) -> bool | None:
        """Whether it is ``version`` or newer."""
        older = self.before(version)
        return None if older is None else not older

    @property
    def text(self) -> str | None:
        """``0.28.0``, or ``None``."""
        return None if self.exact is None else self.exact.base_version


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorUse:
    """One KV connector of a launch: the top one, or a child of MultiConnector."""

    name: str | None
    """``None`` when absent or a run-time value."""
    location: Location
    node: Node
    child: bool = False

    @property
    def extra(self) -> Node | None:
        """``kv_connector_extra_config`` when it is an object."""
        node = self.node.get("kv_connector_extra_config")
        return node if node is not None and node.kind == "object" else None

    @property
    def vendor(self) -> bool:
        """Whether its class comes from a module of the user's: then its name and keys are not ours to judge."""
        module = self.node.get("kv_connector_module_path")
        return module is not None and not (module.kind == "null" or (module.kind == "string" and not module.value))

    @property
    def entry(self) -> Mapping[str, Any]:
        """What the catalog says about it; empty for vendors and unknown names."""
        return {} if self.vendor or self.name is None else catalog.connector(self.name)

    @property
    def kind(self) -> str:
        """``store``, ``transfer``, ``wrapper``, ``test``, or an empty string."""
        return str(self.entry.get("kind", ""))

    def option(self, key: str) -> Node | None:
        """Return a value of the extra configuration."""
        return self.extra.get(key) if self.extra else None

    def member(self, key: str) -> Member | None:
        """Return a key of the extra configuration with its place."""
        return self.extra.member(key) if self.extra else None

    @property
    def tiering(self) -> bool:
        """Whether it is the native connector with its tiering spec."""
        spec = self.option("spec_name")
        return self.name == "OffloadingConnector" and spec is not None and spec.value == "TieringOffloadingSpec"

    @property
    def own_spec(self) -> bool:
        """Whether the offloading spec is the user's own class."""
        return self.option("spec_module_path") is not None

    def tiers(self) -> Iterator[Node]:
        """Yield the objects of ``secondary_tiers``."""
        tiers = self.option("secondary_tiers")
        if tiers is not None and tiers.kind == "array":
            yield from (tier for tier in tiers.items if tier.kind == "object")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One LMCache engine setting, wherever it was given."""

    key: str
    name: str
    """As the user wrote it: ``LMCACHE_CHUNK_SIZE``, ``chunk_size`` or ``lmcache.chunk_size``."""
    text: str | None
    location: Location
    origin: str
    """``env``, ``yaml`` or ``extra``."""
    node: Node | None = None
    value: Value | None = None

    @property
    def number(self) -> int | float | None:
        """The number that LMCache reads, ``None`` when it reads none."""
        if self.node is not None:
            return node_number(self.node)
        if self.text is None:
            return None
        try:
            return float(self.text)
        except ValueError:
            return None

    @property
    def boolean(self) -> bool | None:
        """The boolean that LMCache reads; ``None`` when it cannot be known."""
        if self.node is not None and self.node.kind == "boolean":
            return bool(self.node.value)
        return None if self.text is None else self.text.strip().lower() in {"true", "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSize:
    """How many bytes of host memory a native tier takes, over all ranks of one engine."""

    bytes: int
    location: Location
    written: str
    """``--kv-offloading-size 8`` or ``cpu_bytes_to_use 8589934592``."""
    per_rank: bool = False


def version_of(value: Value | None, override: str | None) -> Known:
    for text in (override, known_text(value)):
        if text:
            try:
                return Known(Version(text.lstrip("v")))
            except InvalidVersion:
                continue
    return Known()


def connector_uses(node: Node, *, child: bool) -> Iterator[ConnectorUse]:
    member = node.member("kv_connector")
    name = member.node.value if member is not None and member.node.kind == "string" else None
    if member is not None or not child:
        yield ConnectorUse(
            name=name, location=member.node.location if member is not None else node.location, node=node, child=child
        )
    if name != "MultiConnector":
        return
    extra = node.get("kv_connector_extra_config")
    children = extra.get("connectors") if extra is not None and extra.kind == "object" else None
    for item in children.items if children is not None else ():
        if item.kind == "object":
            yield from connector_uses(item, child=True)


def lmcache_settings(launch: Launch, uses: tuple[ConnectorUse, ...] = ()) -> Iterator[Setting]:
    """Yield LMCache engine settings of a launch in the order in which they win, the last one strongest."""
    keys = catalog.lmcache_keys()
    for config in launch.configs:
        if config.kind == "lmcache-yaml" and config.node.kind == "object":
            for member in config.node.members:
                yield _node_setting(member.key, member.key, member, "yaml")
    for variable in launch.env:
        key = variable.name[len(LMCACHE_ENV) :].lower() if variable.name.startswith(LMCACHE_ENV) else ""
        if key in keys and variable.reaches:
            yield Setting(
                key=key,
                name=variable.name,
                text=known_text(variable.value),
                location=variable.value.location,
                origin="chart" if variable.origin == "helm chart" else "env",
                value=variable.value,
            )
    for use in uses:
        for member in use.extra.members if use.extra is not None else ():
            if member.key.startswith("lmcache.") and not member.key.startswith("lmcache.mp."):
                yield _node_setting(member.key[len("lmcache.") :], member.key, member, "extra")


def _node_setting(key: str, name: str, member: Member, origin: str) -> Setting:
    node = member.node
    text = None
    if node.kind == "string" or node.kind in {"number", "boolean"}:
        text = str(node.value)
    return Setting(key=key, name=name, text=text, location=node.location, origin=origin, node=node)
