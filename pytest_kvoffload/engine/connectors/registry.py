"""Every connector kind by name. To add one, write its module and put it here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_kvoffload.engine.connectors.example import EXAMPLE
from pytest_kvoffload.engine.connectors.interface import ConnectorKind
from pytest_kvoffload.engine.connectors.lmcache_inprocess import LMCACHE_INPROCESS
from pytest_kvoffload.engine.connectors.lmcache_mp import LMCACHE_MP
from pytest_kvoffload.engine.connectors.multi import MULTI
from pytest_kvoffload.engine.connectors.offloading import NATIVE, TIERING
from pytest_kvoffload.engine.connectors.plain import RAW, RECOMPUTE
from pytest_kvoffload.engine.connectors.simple_cpu import SIMPLE_CPU
from pytest_kvoffload.errors import ConfigError, did_you_mean
from pytest_kvoffload.records import ConnectorConfig

KINDS: Mapping[str, ConnectorKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            RECOMPUTE,
            NATIVE,
            TIERING,
            SIMPLE_CPU,
            EXAMPLE,
            MULTI,
            LMCACHE_MP,
            LMCACHE_INPROCESS,
            RAW,
        )
    }
)


def find_kind(connector: ConnectorConfig) -> ConnectorKind:
    """Return the kind of a connector, or raise a ConfigError that lists the known ones."""
    kind = KINDS.get(connector.kind)
    if kind is None:
        raise ConfigError(
            section=f"connectors.{connector.name}",
            key="kind",
            got=repr(connector.kind),
            expected=f"one of {', '.join(sorted(KINDS))}",
            hint=did_you_mean(connector.kind, KINDS),
        )
    return kind
