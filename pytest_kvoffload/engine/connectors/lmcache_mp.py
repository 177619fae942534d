"""LMCache's MP mode: the LMCacheMPConnector in vLLM, and a server beside it that holds the tier."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS
from pytest_kvoffload.catalog.lmcache import load_lmcache
from pytest_kvoffload.engine.connectors.interface import (
    ConnectorKind,
    HelperSpec,
    LaunchContext,
    LaunchParts,
    TierClear,
)
from pytest_kvoffload.engine.connectors.lmcache_options import (
    DEFAULT_CHUNK_TOKENS,
    ENV,
    LOCALHOST,
    block_tokens,
    choice,
)
from pytest_kvoffload.engine.options import OptionReader

SERVER_MODULE = "lmcache.v1.multiprocess.http_server"
"""What ``lmcache server`` runs; as a module it needs no console script on PATH."""
MQ_TIMEOUT_SECONDS = 25.0
"""LMCache's own default is 300 s, which a server of the wrong transfer mode makes vLLM wait in silence."""
DISK_ADAPTERS = ("fs", "fs_native")

_SERVERS = ("managed", "autostart", "external")
_VIAS = ("connector", "flag")
_POLICIES = ("LRU", "ARC", "IsolatedLRU", "noop")
_MODES = ("auto", "engine_driven", "lmcache_driven")
_OWN_SERVER_KEYS = ("l1_size_gb", "eviction_policy", "l2", "server_args")
_NOT_IN_SERVER_ARGS = {
    "--host": "the server listens on 127.0.0.1",
    "--http-host": "the server listens on 127.0.0.1",
    "--port": "a free port is found",
    "--http-port": "a free port is found",
    "--l1-size-gb": "write l1_size_gb",
    "--chunk-size": "write chunk_size",
    "--eviction-policy": "write eviction_policy",
    "--l2-adapter": "write l2",
    "--supported-transfer-mode": "write transfer_mode",
}


def _build(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(
        LMCACHE_MP.options,
        hint="; extra_config = {...} and server_args = [...] pass anything else to LMCache unchecked",
    )
    server = choice(options, "server", _SERVERS, default="managed")
    via = choice(options, "via", _VIAS, default="connector")
    mode = choice(options, "transfer_mode", _MODES, default="auto")
    chunk = _chunk_tokens(options, context)
    timeout = options.number("mq_timeout_seconds", above=0) or MQ_TIMEOUT_SECONDS
    if server == "external":
        host, port, http_url = _external(options)
    else:
        for key in ("url", "http_url"):
            if options.has(key):
                raise options.fail(key, f"none with server = {server!r}: it is for server = 'external'")
        host, port = LOCALHOST, context.port("lmcache")
        http_url = f"http://{LOCALHOST}:{context.port('lmcache-http')}"
    extra: dict[str, Any] = {
        "lmcache.mp.host": f"tcp://{host}",
        "lmcache.mp.port": port,
        "lmcache.mp.mq_timeout": timeout,
    }
    if mode != "auto":
        extra["lmcache.mp.mp_transfer_mode"] = mode
    helpers: tuple[HelperSpec, ...] = ()
    if server == "managed":
        helpers = (_helper(options, context, chunk, mode, port, http_url),)
    elif server == "autostart":
        _refuse_old_autostart(options, context)
        extra["lmcache.mp.autostart"] = True
        words = [*_server_args(options, context, chunk, mode), "--http-port", str(context.port("lmcache-http"))]
        extra["lmcache.mp.autostart.server_args"] = shlex.join(words)
    extra |= options.mapping("extra_config")
    args, config = _flag_or_connector(via, extra, options)
    return LaunchParts(
        args=args,
        env=dict(ENV),
        kv_transfer_config=config,
        helpers=helpers,
        metrics_urls=(f"{http_url}/metrics",) if http_url else (),
        # The server's keys hold the request's cache salt, so nothing older can hit; this frees the room that it takes.
        # Somebody else's server is left as it is.
        clears=(TierClear(action="post", target=f"{http_url}/cache/clear"),) if server != "external" else (),
        salted=True,
        chunk_tokens=chunk,
        packages=("lmcache",),
    )


def _chunk_tokens(options: OptionReader, context: LaunchContext) -> int:
    """Return the chunk size, refused at once where vLLM would refuse it after its boot."""
    chunk = options.integer("chunk_size", at_least=1) or DEFAULT_CHUNK_TOKENS
    block = block_tokens(context)
    if block is not None and chunk % block:
        below = chunk // block * block
        fitting = f"{below} or {below + block}" if below else str(block)
        raise options.fail("chunk_size", f"a multiple of vLLM's block of {block} tokens, such as {fitting}", got=chunk)
    return chunk


def _external(options: OptionReader) -> tuple[str, int, str | None]:
    for key in _OWN_SERVER_KEYS:
        if options.has(key):
            raise options.fail(key, "none with server = 'external': that server runs already, with its own settings")
    text = options.text("url")
    if text is None:
        raise options.fail("url", "where the LMCache server listens for vLLM, such as tcp://127.0.0.1:5555")
    host, port = _endpoint(text)
    if host is None or port is None:
        raise options.fail("url", "tcp://HOST:PORT", got=text)
    http_url = options.text("http_url")
    if http_url is not None and not http_url.startswith(("http://", "https://")):
        raise options.fail("http_url", "the server's HTTP address, such as http://127.0.0.1:8080", got=http_url)
    return host, port, http_url.rstrip("/") if http_url else None


def _endpoint(text: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(text if "://" in text else f"tcp://{text}")
        return (parts.hostname, parts.port) if parts.scheme == "tcp" else (None, None)
    except ValueError:  # a port that is no number, or out of range
        return None, None


def _server_args(options: OptionReader, context: LaunchContext, chunk: int, mode: str) -> list[str]:
    """Return what ``lmcache server`` gets besides its addresses, for a helper and for autostart alike."""
    size = options.number("l1_size_gb", above=0)
    if size is None:
        raise options.fail("l1_size_gb", "the size of the server's memory tier, in GiB over all ranks (LMCache's unit)")
    policy = choice(options, "eviction_policy", _POLICIES, default="LRU")
    # Without CUDA only engine_driven works without leaving shared memory behind; "auto" serves either kind of client.
    supported = mode if mode != "auto" else "engine_driven" if context.cpu_platform else "auto"
    words = ["--l1-size-gb", f"{size:g}", "--chunk-size", str(chunk), "--eviction-policy", policy]
    words += ["--supported-transfer-mode", supported]
    for adapter in _adapters(options, context):
        words += ["--l2-adapter", json.dumps(adapter)]
    return words + _further(options)


def _adapters(options: OptionReader, context: LaunchContext) -> list[dict[str, Any]]:
    tables = options.options.get("l2")
    if tables is None:
        return []
    if not isinstance(tables, Sequence) or isinstance(tables, str):
        raise options.fail("l2", "a list of tables, each with a type, such as [{type = 'fs'}]", got=tables)
    adapters = []
    for index, table in enumerate(tables):
        if not isinstance(table, Mapping) or not isinstance(table.get("type"), str):
            raise options.fail("l2", "tables, each with a type (fs, fs_native ...)", got=table)
        if table["type"] == "disk":
            raise options.fail("l2", "type 'fs' or 'fs_native' (LMCache's own help says 'disk', which does not exist)")
        adapter = dict(table)
        if adapter["type"] in DISK_ADAPTERS and "base_path" not in adapter:
            adapter["base_path"] = str(Path(context.scratch, f"lmcache-l2-{index}"))
        adapters.append(adapter)
    return adapters


def _further(options: OptionReader) -> list[str]:
    words = options.options.get("server_args")
    if words is None:
        return []
    if not isinstance(words, Sequence) or isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise options.fail("server_args", "a list of strings, such as ['--max-workers', '2']", got=words)
    for word in words:
        if instead := _NOT_IN_SERVER_ARGS.get(word.partition("=")[0]):
            raise options.fail("server_args", f"no {word.partition('=')[0]}: {instead}", got=word)
    return list(words)


def _helper(
    options: OptionReader, context: LaunchContext, chunk: int, mode: str, port: int, http_url: str | None
) -> HelperSpec:
    listen = ["--host", LOCALHOST, "--port", str(port), "--http-host", LOCALHOST]
    listen += ["--http-port", str(context.port("lmcache-http"))]
    return HelperSpec(
        name="lmcache-server",
        command=(context.python, "-m", SERVER_MODULE, *listen, *_server_args(options, context, chunk, mode)),
        env=dict(ENV),
        ready_port=port,
        ready_url=f"{http_url}/healthcheck",
    )


def _refuse_old_autostart(options: OptionReader, context: LaunchContext) -> None:
    fact = load_lmcache().missing("lmcache.mp.autostart", context.lmcache_version)
    if fact is not None:
        raise options.fail(
            "server",
            f"'managed' or 'external' with LMCache {context.lmcache_version}: autostart came with {fact.since}, before "
            f"it the key is ignored and no server is there",
            got="autostart",
        )


def _flag_or_connector(
    via: str, extra: Mapping[str, Any], options: OptionReader
) -> tuple[tuple[str, ...], dict[str, Any]]:
    if via == "connector":
        named = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
        return (), {**named, "kv_connector_extra_config": dict(extra)}
    # vLLM wants a size or nothing is offloaded, and does not use it: the server's own size counts.
    size = options.number("l1_size_gb", above=0) or 1.0
    return (
        ("--kv-offloading-backend", "lmcache", "--kv-offloading-size", f"{size:g}"),
        {"kv_connector_extra_config": dict(extra)},
    )


LMCACHE_MP = ConnectorKind(
    name="lmcache_mp",
    summary="LMCacheMPConnector and an LMCache server beside it (memory, and L2 adapters below)",
    options=KIND_OPTIONS["lmcache_mp"].names,
    build=_build,
)
