"""LMCache's in-process mode: LMCacheConnectorV1, with memory, disk and a remote store configured by environment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS
from pytest_kvoffload.engine.connectors.cpu_platform import LMCACHE_MODULE
from pytest_kvoffload.engine.connectors.flags import flag_number
from pytest_kvoffload.engine.connectors.interface import (
    ConnectorKind,
    HelperSpec,
    LaunchContext,
    LaunchParts,
    TierClear,
)
from pytest_kvoffload.engine.connectors.lmcache_options import DEFAULT_CHUNK_TOKENS, ENV, LOCALHOST, choice
from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.errors import did_you_mean

CPU_CONNECTOR = "KVOffloadLMCacheConnector"
METRICS_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Without it vLLM's /metrics shows none of LMCache's series; it must be set before vLLM starts."""
DEFAULT_HASH_SEED = "0"

_DATA_PARALLEL = ("--data-parallel-size", "-dp")
_STORE_VARIABLES = (
    "LMCACHE_CONFIG_FILE",
    "LMCACHE_REMOTE_CONFIG_URL",
    "LMCACHE_REMOTE_URL",
    "LMCACHE_LOCAL_DISK",
    "LMCACHE_GDS_PATH",
    "LMCACHE_MARU_PATH",
    "LMCACHE_STORAGE_PLUGINS",
    "LMCACHE_REMOTE_STORAGE_PLUGINS",
    "LMCACHE_EXTRA_CONFIG",
    "LMCACHE_ENABLE_P2P",
    "LMCACHE_ENABLE_PD",
)
"""Variables that name a store, or what may name one: in the user's environment they reach the server too."""
_REMOTES = ("lm", "redis")
_DATABASES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remote:
    """A store outside vLLM: its URL, the process that serves it (if it is ours), and how it is emptied."""

    url: str
    helpers: tuple[HelperSpec, ...] = ()
    clears: tuple[TierClear, ...] | None = None
    """``None`` when nothing may empty it."""


def _build(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(
        LMCACHE_INPROCESS.options,
        hint="; config = {...} sets any other key of LMCache, extra_config = {...} any of vLLM's",
    )
    settings = _settings(options, context)
    remote = _remote(options, context)
    if remote is not None:
        settings["remote_url"] = remote.url
    settings |= _clear_endpoint(context)
    settings |= _further(options, settings)
    env = {**ENV, **{f"LMCACHE_{key.upper()}": _word(value) for key, value in settings.items()}}
    env["PYTHONHASHSEED"] = _hash_seed(options)
    if (path := options.text("config_file")) is not None:
        env["LMCACHE_CONFIG_FILE"] = _config_file(options, path)
    config: dict[str, Any] = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    if context.cpu_platform:
        config = {"kv_connector": CPU_CONNECTOR, "kv_connector_module_path": LMCACHE_MODULE, "kv_role": "kv_both"}
    if extra := options.mapping("extra_config"):
        config["kv_connector_extra_config"] = extra
    chunk = settings.get("chunk_size")
    named = [name for name in _STORE_VARIABLES if context.env.get(name)]
    return LaunchParts(
        env=env,
        kv_transfer_config=config,
        helpers=remote.helpers if remote else (),
        clears=() if named else _clears(options, context, settings, remote),
        # Its keys are hashes of the tokens alone: a request's cache salt is not in them.
        salted=False,
        chunk_tokens=chunk if isinstance(chunk, int) else None,
        fresh_dirs={METRICS_DIR_VARIABLE: "prometheus"},
        packages=("lmcache",),
        notes=tuple(f"{name} is set in the environment: what it names cannot be emptied by us" for name in named),
    )


def _settings(options: OptionReader, context: LaunchContext) -> dict[str, Any]:
    """Return LMCache's settings by its own names, each checked."""
    from_file = options.has("config_file")
    found: dict[str, Any] = {}
    size = options.number("max_local_cpu_size", above=0)
    if size is None and not from_file:
        raise options.fail(
            "max_local_cpu_size", "the size of the memory tier in GiB per rank (LMCache's own default is 5)"
        )
    for key, value in (("max_local_cpu_size", size), ("local_cpu", options.boolean("local_cpu"))):
        if value is not None:
            found[key] = value
    found |= _disk(options, context)
    chunk = options.integer("chunk_size", at_least=1)
    if chunk is not None or not from_file:
        found["chunk_size"] = chunk or DEFAULT_CHUNK_TOKENS
    for key in ("pre_caching_hash_algorithm", "remote_serde"):
        if (text := options.text(key)) is not None:
            found[key] = text
    return found


def _disk(options: OptionReader, context: LaunchContext) -> dict[str, Any]:
    where = options.options.get("local_disk")
    size = options.number("max_local_disk_size", above=0)
    if where is None or where is False:
        if size is not None:
            raise options.fail("local_disk", "true (a directory of this boot) or a path: without one there is no disk")
        return {}
    if size is None:
        raise options.fail(
            "max_local_disk_size", "the size of the disk tier in GiB per rank: without it LMCache ignores local_disk"
        )
    if where is True:
        where = str(Path(context.scratch, "lmcache-disk"))
    if not isinstance(where, str) or not where:
        raise options.fail("local_disk", "true (a directory of this boot) or a path", got=where)
    if where.lower() in ("true", "false", "yes", "on"):
        raise options.fail("local_disk", f"true, or a path: LMCache would make a directory ./{where}", got=where)
    return {"local_disk": where, "max_local_disk_size": size}


def _remote(options: OptionReader, context: LaunchContext) -> _Remote | None:
    named, url = options.text("remote"), options.text("remote_url")
    flush = options.boolean("flush_remote")
    if named is None and url is None:
        if flush is not None:
            raise options.fail("flush_remote", "a remote or remote_url that it speaks of")
        return None
    if named is not None and url is not None:
        raise options.fail("remote", "remote (a store that is started here) or remote_url (one that runs), not both")
    if url is not None:
        scheme = urlsplit(url).scheme
        if not scheme:
            raise options.fail("remote_url", "a URL such as lm://HOST:PORT or redis://HOST:PORT", got=url)
        if flush and scheme not in _DATABASES:
            raise options.fail("flush_remote", "a redis:// URL: nothing is known that empties another store")
        return _Remote(url=url, clears=(TierClear(action="redis_flush", target=url),) if flush else None)
    if flush is not None:
        raise options.fail("flush_remote", "none with remote: that store is this boot's own and is emptied anyway")
    name = choice(options, "remote", _REMOTES, default="lm")
    port = context.port(f"lmcache-{name}")
    url = f"{name}://{LOCALHOST}:{port}"
    if name == "lm":
        command: tuple[str, ...] = (context.python, "-m", "lmcache.v1.server", LOCALHOST, str(port))
        return _Remote(
            url=url,
            helpers=(HelperSpec(name="lmcache-remote", command=command, env=dict(ENV), ready_port=port),),
            clears=(TierClear(action="new_server", target="LMCache's lm:// server"),),
        )
    return _Remote(
        url=url,
        helpers=(HelperSpec(name="redis", command=_redis_command(options, port), ready_port=port, timeout_seconds=20),),
        clears=(TierClear(action="redis_flush", target=url),),
    )


def _redis_command(options: OptionReader, port: int) -> tuple[str, ...]:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        if port:  # a boot; a configuration is valid on a machine without it too
            raise options.fail("remote", "'lm', or redis-server on PATH (Debian and Ubuntu: apt install redis-server)")
        program = "redis-server"
    # A store of this boot alone: on the loopback interface, nothing written to disk.
    return (program, "--port", str(port), "--bind", LOCALHOST, "--save", "", "--appendonly", "no")


def _clear_endpoint(context: LaunchContext) -> dict[str, Any]:
    """Settings that make the first worker serve ``DELETE /cache/clear`` on a port of ours.

    LMCache gives the scheduler the first port and worker i the one after i more; only worker 0 is asked for. With more
    ranks one port is not enough, and the server is left off.
    """
    if _ranks(context) > 1:
        return {}
    return {
        "internal_api_server_enabled": True,
        "internal_api_server_host": LOCALHOST,
        "internal_api_server_port_start": context.port("lmcache-api") - 1,
        "internal_api_server_include_index_list": "1",
    }


def _ranks(context: LaunchContext) -> int:
    found = 1
    for flags in (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), _DATA_PARALLEL):
        found *= next((n for flag in flags if (n := flag_number(context.words, flag)) is not None), 1)
    return found


def _clears(
    options: OptionReader, context: LaunchContext, settings: Mapping[str, Any], remote: _Remote | None
) -> tuple[TierClear, ...]:
    """How everything is emptied, or nothing when a part of it cannot be.

    LMCache's clear empties its memory only: disk and remote backends have none (lmcache/v1/storage_backend, 0.5.6).
    """
    if remote is not None and remote.clears is None:
        return ()
    if options.has("config_file") or options.options.get("config"):
        return ()  # any further store may be in there
    parts = remote.clears if remote is not None and remote.clears else ()
    if "local_disk" in settings:
        parts = (TierClear(action="new_server", target="LMCache's local disk"), *parts)
    if any(part.action == "new_server" for part in parts):
        return parts
    if _ranks(context) > 1:
        return (TierClear(action="new_server", target="the memory of several ranks"), *parts)
    return (TierClear(action="delete", target=f"http://{LOCALHOST}:{context.port('lmcache-api')}/cache/clear"), *parts)


def _further(options: OptionReader, settings: Mapping[str, Any]) -> dict[str, Any]:
    from pytest_kvoffload.catalog.lint import lmcache_keys

    known = lmcache_keys()
    further = options.mapping("config")
    for key in further:
        if key not in known:
            raise options.fail("config", "keys of LMCache's own", got=key, hint=did_you_mean(key, known))
        # LMCache has an extra_config of its own; the option of that name is vLLM's.
        if key in settings or (key in LMCACHE_INPROCESS.options and key != "extra_config"):
            raise options.fail("config", f"no {key} here: it is an option of this connector, or set by it", got=key)
    return further


def _hash_seed(options: OptionReader) -> str:
    """Return PYTHONHASHSEED: scheduler and workers are processes of their own and must agree on Python's hash."""
    value = options.options.get("hash_seed")
    if value is None:
        return DEFAULT_HASH_SEED
    if value == "random" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32):
        return str(value)
    raise options.fail("hash_seed", "a whole number from 0 to 4294967295, or 'random'", got=value)


def _config_file(options: OptionReader, text: str) -> str:
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise options.fail("config_file", "a YAML file that is there: LMCache ends vLLM without it", got=text)
    return str(path)


def _word(value: Any) -> str:
    """Spell a value as LMCache reads it from the environment; only ``true`` and ``1`` are true to it."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


LMCACHE_INPROCESS = ConnectorKind(
    name="lmcache_inprocess",
    summary="LMCacheConnectorV1: memory, disk and a remote store inside vLLM's workers",
    options=KIND_OPTIONS["lmcache_inprocess"].names,
    build=_build,
)
