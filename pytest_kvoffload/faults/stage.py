"""The stage of the scenarios: the user's connector, moved away from the user's own storage to storage of ours.

Faults destroy what they touch. So a disk tier gets a directory of ours, an object tier a stand-in S3 server of ours
behind a proxy, a redis tier a redis server of ours: nothing that the configuration names is ever written, and no
credential of it is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pytest_kvoffload.errors import EngineError, MissingExtraError
from pytest_kvoffload.faults.catalog import Fault, Site
from pytest_kvoffload.faults.disk import TierDisk
from pytest_kvoffload.faults.proxy import HttpFaultProxy, TcpFaultProxy
from pytest_kvoffload.records import ConnectorConfig

if TYPE_CHECKING:
    from pytest_kvoffload.engine.helpers import Helper

BUCKET = "kvoffload-chaos"
ACCESS_KEY = "kvoffload-chaos"
STORE_ENV: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": "kvoffload-chaos-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""For the stand-in, which checks none; set for the server, they win over any of the user's own."""
SMALL_HOST_BYTES = 4 * 2**20
"""Host tier above another tier on the generated model: so small that the tier below is what serves."""
_EXTERNAL_KEYS = ("server", "url", "http_url")
OWN_SERVER_GB = 0.5
"""Memory of an LMCache server that stands in for one of the user's."""


class Stage:
    """What is around the server in a run of scenarios. Use as a context manager.

    Args:
        connector: the user's.
        small_host: make the host tier above another tier small, so that the tier below serves.
        directory: where logs of the stand-ins go.
    """

    def __init__(self, connector: ConnectorConfig, *, small_host: bool, directory: Path) -> None:
        self.original = connector
        self.directory = directory
        self.small_host = small_host
        self.disk: TierDisk | None = None
        self.store: HttpFaultProxy | None = None
        self.redis: TcpFaultProxy | None = None
        self.notes: list[str] = []
        self.connector = connector
        self._stack = contextlib.ExitStack()
        self._stand_ins: list[Helper] = []

    def __enter__(self) -> Stage:
        try:
            self.connector = self._set()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def left_behind(self) -> tuple[str, ...]:
        """What is still there of it; ask after its end."""
        found = [f"process {helper.spec.name}" for helper in self._stand_ins if helper.alive()]
        if self.disk is not None and self.disk.path.exists():
            found.append(str(self.disk.path))
        return tuple(found)

    def refusal(self, fault: Fault) -> str:
        """Why a fault does not apply to this connector; empty when it does."""
        site, kind = fault.site, self.original.kind
        if kind == "recompute":
            return "" if site == "engine" else "a connector of kind recompute has no tier"
        if fault.name == "tier_exhausted" and kind == "tiering" and self.small_host:
            return "its host tier is made small here from the start, and holds the working set in no scenario"
        if site == "launch":
            if kind not in ("native", "tiering"):
                return f"the size and the link of a tier of kind {kind!r} are not ours to set"
            return ""
        have = _sites(self.original)
        if site not in have:
            return f"{_WORDS[site]}: a connector of kind {kind!r} as configured has none"
        if site == "host_memory" and kind == "tiering" and self.small_host:
            return "its host tier is made so small here that every block comes from the tier below: break that one"
        if site == "disk" and self.disk is not None and fault.name == "disk_full" and not self.disk.limited:
            return f"a full disk needs root, to mount a small file system of our own ({self.disk.refusal})"
        if site == "redis" and shutil.which("redis-server") is None:
            return "there is no redis-server on this machine to break"
        return ""

    # --------------------------------------------------------------------------------------------- putting it up
    def _set(self) -> ConnectorConfig:
        sites = _sites(self.original)
        options: dict[str, Any] = dict(self.original.options)
        if "disk" in sites:
            self.disk = self._stack.enter_context(TierDisk())
            if not self.disk.limited:
                self.notes.append(f"the disk tier lies in a plain directory: {self.disk.refusal}")
        if "object_store" in sites:
            self._start_store()
        if self.original.kind == "tiering":
            options["secondary_tiers"] = [self._tier(tier) for tier in options["secondary_tiers"]]
            if self.small_host:
                options.pop("size_gib", None)
                options["cpu_bytes_to_use"] = SMALL_HOST_BYTES
                self.notes.append(f"the host tier was made small ({SMALL_HOST_BYTES} bytes): the tier below serves")
        if self.original.kind == "lmcache_mp" and self.disk is not None:
            options["l2"] = [
                {**table, "base_path": str(self.disk.path)} if str(table.get("type", "")).startswith("fs") else table
                for table in options.get("l2", ())
            ]
        if self.original.kind == "lmcache_mp" and options.get("server") == "external":
            options = {**{k: v for k, v in options.items() if k not in _EXTERNAL_KEYS}, "l1_size_gb": OWN_SERVER_GB}
            self.notes.append(f"an LMCache server of ours ({OWN_SERVER_GB} GB) stands in for the external one")
        if self.original.kind == "lmcache_inprocess":
            self._set_inprocess(options, redis="redis" in sites)
        env = {**self.original.env, **(STORE_ENV if self.store is not None else {})}
        return dataclasses.replace(self.original, options=options, env=env)

    def _set_inprocess(self, options: dict[str, Any], *, redis: bool) -> None:
        """Move an in-process LMCache to a directory and a store of ours."""
        if isinstance(options.get("local_disk"), str):
            options["local_disk"] = True  # a directory of the boot
        if redis and shutil.which("redis-server") is not None:
            database = urlsplit(str(options.pop("remote_url", ""))).path
            options.pop("remote", None)
            self._start_redis()
            assert self.redis is not None
            options |= {"remote_url": f"redis://127.0.0.1:{self.redis.port}{database}", "flush_remote": True}
        elif urlsplit(str(options.get("remote_url", ""))).scheme == "lm":
            del options["remote_url"]
            options["remote"] = "lm"

    def _tier(self, tier: Mapping[str, Any]) -> dict[str, Any]:
        if tier.get("type") == "fs" and self.disk is not None:
            return {**tier, "root_dir": str(self.disk.path)}
        if tier.get("type") == "obj" and self.store is not None:
            store: dict[str, Any] = {
                "bucket": BUCKET,
                "endpoint_override": self.store.endpoint,
                "region": "us-east-1",
                "scheme": "http",
            }
            return {**tier, "store_config": store}
        return dict(tier)

    def _start_store(self) -> None:
        """Start the stand-in S3 server, make the bucket, put the proxy in front of it."""
        if find_spec("moto") is None or find_spec("flask") is None:
            raise MissingExtraError("faults of an object tier (they run against a stand-in S3 server)", "chaos", "moto")
        port = self._start("stand-in-s3", [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"])
        make_bucket(port)
        self.store = HttpFaultProxy(("127.0.0.1", port))
        self._stack.callback(self.store.close)

    def _start_redis(self) -> None:
        words = ["redis-server", "--bind", "127.0.0.1", "--port", "{port}", "--save", "", "--appendonly", "no"]
        port = self._start("stand-in-redis", words)
        self.redis = TcpFaultProxy(("127.0.0.1", port))
        self._stack.callback(self.redis.close)

    def _start(self, name: str, command: list[str]) -> int:
        """Start a stand-in under a guard of its own: it ends with this process, whatever happens to it."""
        from pytest_kvoffload.engine.connectors import HelperSpec
        from pytest_kvoffload.engine.helpers import Helper
        from pytest_kvoffload.engine.processes import free_port, this_process

        port = free_port()
        words = tuple(word.format(port=port) for word in command)
        scratch = tempfile.mkdtemp(prefix="kvo-")
        spec = HelperSpec(name=name, command=words, ready_port=port, timeout_seconds=60.0)
        self._stand_ins.append(helper := Helper(spec, log=self.directory / f"{name}-{port}.log", owner=this_process()))
        try:
            helper.start(scratch=scratch)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        self._stack.callback(helper.stop)
        return port


def make_bucket(port: int) -> None:
    """Make the bucket on a stand-in S3 server, which checks no signature.

    Raises:
        EngineError: it was refused.
    """
    import requests

    from pytest_kvoffload.engine.readback import local_session

    try:
        with local_session() as session:
            # A path-style PUT of the bucket; the header says whose it is, as an SDK's signature would.
            scope = f"{ACCESS_KEY}/20260101/us-east-1/s3/aws4_request"
            signed = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=none"
            answer = session.put(f"http://127.0.0.1:{port}/{BUCKET}", headers={"Authorization": signed}, timeout=30)
    except requests.RequestException as error:
        raise EngineError(f"the stand-in S3 server does not make a bucket: {error}") from error
    if answer.status_code not in (200, 409):
        raise EngineError(f"the stand-in S3 server does not make a bucket: HTTP {answer.status_code}")


_WORDS: Mapping[Site, str] = {
    "engine": "the engine's processes",
    "launch": "the configuration",
    "host_memory": "host memory of vLLM's OffloadingConnector",
    "disk": "the directory of a disk tier",
    "object_store": "an object store",
    "cache_server": "an LMCache server of ours",
    "redis": "a redis server",
}


def _sites(connector: ConnectorConfig) -> frozenset[Site]:
    """Return what this connector has that can break."""
    options = connector.options
    found: set[Site] = {"engine"}
    if connector.kind in ("native", "tiering"):
        found |= {"launch", "host_memory"}
    if connector.kind == "tiering":
        types = {tier.get("type") for tier in options.get("secondary_tiers", ()) if isinstance(tier, Mapping)}
        found |= {"disk"} if "fs" in types else set()
        found |= {"object_store"} if "obj" in types else set()
    if connector.kind == "lmcache_mp":
        if options.get("server", "managed") != "autostart":  # of ours then, or one of ours stands in for it
            found |= {"cache_server"}
        tables = [table for table in options.get("l2") or () if isinstance(table, Mapping)]
        if any(str(table.get("type", "")).startswith("fs") for table in tables):
            found |= {"disk"}
    if connector.kind == "lmcache_inprocess" and (
        options.get("remote") == "redis" or str(options.get("remote_url", "")).startswith(("redis://", "rediss://"))
    ):
        found |= {"redis"}
    return frozenset(found)
