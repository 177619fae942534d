"""Facts about configuration by version, for the linter: flags, connectors, keys, environment names.

``data/vllm-VERSION.json`` and ``data/lmcache-VERSION.json`` are written by the two ``regenerate_lint_*`` scripts;
``data/connectors.json`` is written by hand and says what no source file says in one place: what kind a connector
is, the type of each key, and what a retired name became.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from packaging.version import InvalidVersion, Version

LMCACHE_MP_EXTRA = (
    "lmcache.mp.isolated_ipc",
    "lmcache.mp.use_vmm_api",
    "lmcache.mp.hash_algorithm",
    "lmcache.mp.nonblocking_lookup_status",
)
"""Keys that LMCache builds out of parts, so that no constant in its sources spells them."""

LMCACHE_ENV_EXTRA = (
    "LMCACHE_USE_UPSTREAM_MP",
    "LMCACHE_REMOTE_STORAGE_PLUGINS",
    "LMCACHE_CONFIG_FILE",
    "LMCACHE_DEVICE_BACKEND",
)
"""Names that vLLM reads, not LMCache."""

LMCACHE_ENV_RETIRED: Mapping[str, str] = {
    "LMCACHE_USE_EXPERIMENTAL": "",
    "LMCACHE_ENABLE_NIXL": "LMCACHE_ENABLE_PD",
    "LMCACHE_ENABLE_XPYD": "LMCACHE_ENABLE_PD",
    "LMCACHE_NIXL_ROLE": "LMCACHE_PD_ROLE",
    "LMCACHE_NIXL_RECEIVER_HOST": "LMCACHE_PD_PEER_HOST",
    "LMCACHE_NIXL_RECEIVER_PORT": "LMCACHE_PD_PEER_INIT_PORT",
    "LMCACHE_NIXL_PEER_HOST": "LMCACHE_PD_PEER_HOST",
    "LMCACHE_NIXL_PEER_INIT_PORT": "LMCACHE_PD_PEER_INIT_PORT",
    "LMCACHE_NIXL_PEER_ALLOC_PORT": "LMCACHE_PD_PEER_ALLOC_PORT",
    "LMCACHE_NIXL_PROXY_HOST": "LMCACHE_PD_PROXY_HOST",
    "LMCACHE_NIXL_PROXY_PORT": "LMCACHE_PD_PROXY_PORT",
    "LMCACHE_NIXL_ENABLE_GC": "",
    "LMCACHE_WORKER_PORT": "LMCACHE_LMCACHE_WORKER_PORTS",
    "LMCACHE_LMCACHE_WORKER_PORT": "LMCACHE_LMCACHE_WORKER_PORTS",
    "LMCACHE_WORKER_PORTS": "LMCACHE_LMCACHE_WORKER_PORTS",
    "LMCACHE_CONTROLLER_URL": "LMCACHE_CONTROLLER_PULL_URL",
    "LMCACHE_INSTANCE_ID": "LMCACHE_LMCACHE_INSTANCE_ID",
    "LMCACHE_LOCAL_DEVICE": "LMCACHE_LOCAL_CPU",
    "LMCACHE_MAX_LOCAL_CACHE_SIZE": "LMCACHE_MAX_LOCAL_CPU_SIZE",
}
"""Names that older LMCache read and 0.5 does not: to what they became (empty: nothing replaces them)."""


@cache
def _load(name: str) -> Any:
    return json.loads((resources.files(__package__) / "data" / name).read_text(encoding="utf-8"))


@cache
def versions(product: str) -> tuple[Version, ...]:
    """Return the versions of ``vllm`` or ``lmcache`` that data exists for, oldest first."""
    found = [
        Version(entry.name[len(product) + 1 : -len(".json")])
        for entry in resources.files(__package__).joinpath("data").iterdir()
        if entry.name.startswith(product + "-") and entry.name.endswith(".json")
    ]
    return tuple(sorted(found))


def _nearest(product: str, version: str | None) -> list[Mapping[str, Any]]:
    """Return the data of that version (the newest not above it), of all versions when it is unknown."""
    known = versions(product)
    if version is not None:
        try:
            wanted = Version(version)
        except InvalidVersion:
            wanted = known[-1]
        below = [v for v in known if v <= wanted] or [known[0]]
        return [_load(f"{product}-{below[-1]}.json")]
    return [_load(f"{product}-{v}.json") for v in known]


def _union(product: str, version: str | None, key: str) -> frozenset[str]:
    return frozenset(item for data in _nearest(product, version) for item in data[key])


@cache
def vllm_flags(version: str | None = None) -> frozenset[str]:
    """Return the long options of ``vllm serve`` in that version, of any version when it is ``None``."""
    return _union("vllm", version, "flags")


@cache
def vllm_connectors(version: str | None = None) -> frozenset[str]:
    """Return the connector names that vLLM registers in that version."""
    return _union("vllm", version, "connectors")


@cache
def vllm_transfer_keys(version: str | None = None) -> frozenset[str]:
    """Return the legal top-level keys of ``--kv-transfer-config``."""
    return _union("vllm", version, "transfer_keys")


def curated() -> Mapping[str, Any]:
    """Return ``data/connectors.json``."""
    data: Mapping[str, Any] = _load("connectors.json")
    return data


def connector(name: str) -> Mapping[str, Any]:
    """Return what is known about a connector, an empty mapping for one that is not ours to judge."""
    entry: Mapping[str, Any] = curated()["connectors"].get(name, {})
    return entry


@cache
def lmcache_keys(version: str | None = None) -> Mapping[str, str]:
    """Return LMCache's engine keys and their declared types."""
    merged: dict[str, str] = {}
    for data in _nearest("lmcache", version):
        merged.update(data["keys"])
    return merged


@cache
def lmcache_aliases() -> Mapping[str, str]:
    """Return LMCache's retired key names and what they became."""
    aliases: Mapping[str, str] = _nearest("lmcache", None)[-1]["aliases"]
    return aliases


@cache
def lmcache_environment() -> frozenset[str]:
    """Return every ``LMCACHE_*`` variable that something reads."""
    named = _union("lmcache", None, "environment") | set(LMCACHE_ENV_EXTRA)
    return frozenset(named | {"LMCACHE_" + key.upper() for key in lmcache_keys()})


@cache
def lmcache_mp_keys() -> frozenset[str]:
    """Return the ``lmcache.mp.*`` keys of ``kv_connector_extra_config``."""
    return _union("lmcache", None, "mp_keys") | set(LMCACHE_MP_EXTRA)


@lru_cache(maxsize=256)
def kv_bytes_per_token(model: str) -> int | None:
    """Return the KV bytes per token (16 bits, all ranks) of a model known by name."""
    for pattern, size in _load("models.json")["models"]:
        if re.search(pattern, model, re.IGNORECASE):
            return int(size)
    return None


def weights_flags() -> frozenset[str]:
    """Return vLLM's flags that move model weights."""
    return frozenset(curated()["weights_flags"])
