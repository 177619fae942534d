"""Where an engine publishes its KV cache events, and the arguments that make one do it.

vLLM binds a publisher's endpoint when it holds a wildcard or is a Unix socket, and connects to it otherwise. A wildcard
would open a port on every interface, so a booted server gets Unix sockets in its scratch directory.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_kvoffload.engine.masking import mask_text
from pytest_kvoffload.errors import ConfigError, EngineError, UsageError
from pytest_kvoffload.records import EngineConfig, KVEventSource

if TYPE_CHECKING:
    import requests

FLAG = "--kv-events-config"
BUFFER_STEPS = 900
"""Batches that the publisher keeps for those who missed them: no more than its socket sends at once (1,000)."""
_FIRST_PORT = 1
_LONGEST_PATH = 107
_TIMEOUT_SECONDS = 10.0


def event_args(engine: EngineConfig, words: tuple[str, ...], scratch: Path) -> tuple[str, ...]:
    """Return the arguments that make a booted server publish; empty when nobody listens.

    Raises:
        ConfigError: the user's own arguments configure events too.
        UsageError: pyzmq is not installed.
    """
    if not engine.kv_events:
        return ()
    if any(word == FLAG or word.startswith((f"{FLAG}=", f"{FLAG}.")) for word in words):
        raise ConfigError(
            section="engine",
            key="kv_events",
            got=f"true, and {FLAG} in args",
            expected=f"one of the two: kv_events = true writes {FLAG} itself",
        )
    require_zmq()
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": _endpoint(scratch, "events", 0),
        "replay_endpoint": _endpoint(scratch, "replay", 0),
        "buffer_steps": BUFFER_STEPS,
    }
    return (FLAG, json.dumps(config))


def booted_sources(engine: EngineConfig, scratch: Path, *, replicas: int) -> tuple[KVEventSource, ...]:
    """Return where the ranks of a booted server publish."""
    if not engine.kv_events:
        return ()
    return tuple(
        KVEventSource(
            replica=str(rank),
            endpoint=_endpoint(scratch, "events", rank),
            replay_endpoint=_endpoint(scratch, "replay", rank),
        )
        for rank in range(replicas)
    )


def event_sources(
    engine: EngineConfig, url: str, engine_urls: tuple[str, ...], session: requests.Session
) -> tuple[KVEventSource, ...]:
    """Return where the engines of an attached server publish: as configured, else as they say (vLLM 0.31 and later).

    Raises:
        EngineError: they do not say, or publish in a way that cannot be listened to.
    """
    require_zmq()
    if engine.kv_event_endpoints:
        several = len(engine.kv_event_endpoints) > 1
        return tuple(
            KVEventSource(replica=endpoint.partition("://")[2] if several else "0", endpoint=endpoint)
            for endpoint in engine.kv_event_endpoints
        )
    found: list[KVEventSource] = []
    for base in engine_urls or (url,):
        found += _told(base, session, several=len(engine_urls) > 1)
    return tuple(found)


def require_zmq() -> None:
    """Raise unless pyzmq is there: without it a server would be booted for nothing."""
    if importlib.util.find_spec("zmq") is None:
        raise UsageError("[engine] kv_events needs pyzmq: pip install 'pytest-kvoffload[events]'")


def _endpoint(scratch: Path, what: str, rank: int) -> str:
    # vLLM adds the rank to what follows the last colon, and does so only where the endpoint contains the word "tcp".
    path = f"{scratch}/{what}-tcp:{_FIRST_PORT + rank}"
    if len(path.encode()) > _LONGEST_PATH:
        raise EngineError(
            f"no KV cache events: a Unix socket's path may have {_LONGEST_PATH} bytes, and {path} is longer; set "
            "TMPDIR to a shorter one"
        )
    return f"ipc://{path}"


def _told(base: str, session: requests.Session, *, several: bool) -> list[KVEventSource]:
    import requests

    shown = mask_text(base)
    hint = "start it with --kv-events-config, and name the endpoint in [engine] kv_event_endpoints"
    try:
        answer = session.get(f"{base}/kv_event_sources", timeout=_TIMEOUT_SECONDS)
        told: Any = answer.json() if answer.status_code == 200 else None
    except (requests.RequestException, ValueError):
        told = None
    if not isinstance(told, dict):
        raise EngineError(f"{shown} does not say where it publishes KV cache events (vLLM before 0.31): {hint}")
    if not told:
        raise EngineError(f"{shown} publishes no KV cache events: {hint}")
    host = urlsplit(base).hostname or "127.0.0.1"
    place = urlsplit(base).netloc.rpartition("@")[2]
    found = []
    for rank, config in sorted(told.items()):
        endpoint = str(config.get("endpoint") or "")
        if "*" not in endpoint and not endpoint.startswith("ipc://"):
            raise EngineError(
                f"{shown} publishes its KV cache events to {endpoint or 'nowhere'}: it connects to a listener of its "
                "own there. An endpoint such as tcp://*:5557 lets others listen"
            )
        replay = config.get("replay_endpoint")
        found.append(
            KVEventSource(
                replica=place if several and len(told) == 1 else f"{place}/{rank}" if several else str(rank),
                endpoint=endpoint.replace("*", host),
                replay_endpoint=str(replay).replace("*", host) if replay else None,
                topic=str(config.get("topic") or ""),
            )
        )
    return found
