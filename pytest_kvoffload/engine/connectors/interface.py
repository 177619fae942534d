"""What a connector kind is, and what it hands to a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.records import TierClear

__all__ = ["ConnectorKind", "HelperSpec", "LaunchContext", "LaunchParts", "TierClear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperSpec:
    """A process that a connector needs beside the server: started before it, stopped after it.

    It is ready when ``ready_url`` answers 200, or, without one, when ``ready_port`` on 127.0.0.1 accepts.
    """

    name: str
    command: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    ready_port: int
    ready_url: str | None = None
    timeout_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchParts:
    """What a connector adds to the server's command line and environment, and what it needs around it.

    ``kv_transfer_config`` is what ``args`` carry as JSON, ``None`` without a connector; ``notes`` say what was
    added to the user's own configuration and why.
    """

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    kv_transfer_config: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    helpers: tuple[HelperSpec, ...] = ()
    """Processes to start first, in this order."""
    metrics_urls: tuple[str, ...] = ()
    """Metrics endpoints beside the server's own."""
    clears: tuple[TierClear, ...] = ()
    """How the tier is emptied where vLLM's own reset does not do it."""
    salted: bool = True
    """Whether the tier's keys depend on a request's cache salt, so that a fresh salt can never hit."""
    chunk_tokens: int | None = None
    """Tokens of one chunk, where vLLM's own configuration does not tell them."""
    fresh_dirs: Mapping[str, str] = field(default_factory=dict)
    """Environment variable to the name of a directory: made empty for each start of the server, removed after it."""
    packages: tuple[str, ...] = ()
    """Extras of the engine catalog (``lmcache``, ``nixl``) that a managed engine must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What a kind may need to know.

    While a configuration is only validated nothing of a boot is known: ``python`` is then ``python``, ``scratch`` a
    name under which nothing exists, and every port 0.
    """

    cpu_platform: bool
    server_version: str | None
    lmcache_version: str | None = None
    """Version of LMCache beside that vLLM; ``None`` when it is not known or not installed."""
    python: str = "python"
    """The engine's interpreter."""
    scratch: Path = Path("scratch")
    """A directory of this boot alone, removed when the server ends."""
    port: Callable[[str], int] = lambda name: 0
    """A free port on 127.0.0.1 by name; the same name gives the same port, after a restart of the server too."""
    words: tuple[str, ...] = ()
    """All arguments of the user's: the engine's, then the connector's."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The user's environment for the server: this process's, the engine's, then the connector's."""
    max_model_len: int | None = None
    """The longest prompt with its answer, tokens, where the user gave it."""

    def lacks(self, since: str | None) -> bool:
        """Whether the server's vLLM is known to be older than the version that brought something; ``None``: all did."""
        if since is None or self.server_version is None:
            return False
        try:
            return Version(self.server_version) < Version(since)
        except InvalidVersion:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorKind:
    """One kind of connector. ``build`` validates the options; it starts and writes nothing."""

    name: str
    summary: str
    options: tuple[str, ...]
    build: Callable[[OptionReader, LaunchContext], LaunchParts]
