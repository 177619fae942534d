"""What a server will take of this machine, read off its effective KV transfer configuration and arguments."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_kvoffload.catalog.host_memory import Platform, Where, backing_of, load_host_memory
from pytest_kvoffload.engine.preflight.report import size
from pytest_kvoffload.errors import ConfigError

_GIB = 2**30
_SIMPLE_CPU_DEFAULT_BYTES = 8 * _GIB  # simple_cpu_offload_connector.py (0.26.0:60, 0.32.0:87)
_LMCACHE_DEFAULT_GIB = 5.0  # max_local_cpu_size, per rank (LMCache 0.5.6)
_LMCACHE_MP_PORT = 5555


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """A bucket of an S3-compatible store, with the spelling of vLLM's ``store_config``.

    Keys that are ``None`` are looked for where the AWS SDK looks (environment, credential file, role).
    """

    bucket: str
    endpoint: str
    scheme: str = "http"
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    region: str = "us-east-1"
    ca_bundle: str | None = None
    prefix: str = ""

    @property
    def url(self) -> str:
        """The endpoint with a scheme."""
        return self.endpoint if "://" in self.endpoint else f"{self.scheme}://{self.endpoint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the server will ask of the machine. Sizes are bytes, summed over all ranks and data-parallel engines."""

    platform: Platform
    ranks: int
    tier_bytes: int
    shm_bytes: int
    """Of ``tier_bytes``, what lies in /dev/shm."""
    queue_bytes: int
    """Free space of /dev/shm that the queues between the processes ask for."""
    host_bytes: int
    """All memory: processes, tiers, and the device cache of a CPU engine."""
    filled_at_boot_bytes: int
    """Of ``host_bytes``, what is there before the first request."""
    host_explanation: str
    shm_explanation: str
    engine_ids: tuple[str, ...] = ()
    tier_dirs: tuple[Path, ...] = ()
    object_stores: tuple[ObjectStore, ...] = ()
    servers: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of servers that must be listening before the boot."""
    packages: tuple[str, ...] = ()
    """Packages that the connector or a tier imports; ``nixl:OBJ`` is a plugin."""


class _Sum:
    """What one walk over a transfer configuration adds up."""

    __slots__ = ("dirs", "engine_ids", "packages", "pinned", "private", "servers", "shm", "stores")

    def __init__(self) -> None:
        self.private = self.pinned = self.shm = 0
        self.dirs: list[Path] = []
        self.stores: list[ObjectStore] = []
        self.servers: list[tuple[str, str, int]] = []
        self.packages: list[str] = []
        self.engine_ids: list[str] = []

    def add(self, where: Where, count: int) -> None:
        if where == "shm":
            self.shm += count
        elif where == "pinned":
            self.pinned += count
        else:
            self.private += count


def argument(words: Sequence[str], *names: str) -> str | None:
    """Return the last value of a command-line argument (``--x V`` or ``--x=V``), as argparse would."""
    value = None
    for index, word in enumerate(words):
        name, equals, rest = word.partition("=")
        if name in names:
            value = rest if equals else words[index + 1] if index + 1 < len(words) else value
    return value


def derive(
    *,
    transfer_config: Mapping[str, Any] | None,
    words: Sequence[str],
    env: Mapping[str, str],
    platform: Platform,
    version: str | None,
    weight_bytes: int = 0,
    beside_bytes: int = 0,
    expected_host_bytes: int | None = None,
    expected_shm_bytes: int | None = None,
) -> Needs:
    """Work out what a server will need.

    Args:
        transfer_config: the effective ``--kv-transfer-config``, ``None`` without a connector.
        words: the server's arguments (parallel sizes, ``--kv-offloading-size``).
        env: the server's environment (``VLLM_CPU_KVCACHE_SPACE``, ``LMCACHE_*``).
        platform: of the engine.
        version: of vLLM, ``None`` when unknown.
        weight_bytes: of the model, which a CPU engine holds in host memory.
        beside_bytes: what processes beside the server hold (the memory tier of an LMCache server).
        expected_host_bytes: replaces the tier's private bytes where the caller knows better.
        expected_shm_bytes: replaces the tier's bytes in /dev/shm.
    """
    ranks = _count(words, "--tensor-parallel-size", "-tp") * _count(words, "--pipeline-parallel-size", "-pp")
    engines = _count(words, "--data-parallel-size-local", "-dpl", "--data-parallel-size", "-dp")
    total = _Sum()
    size_flag = _number(argument(words, "--kv-offloading-size"))
    if transfer_config is not None or size_flag:
        config = dict(transfer_config or {})
        if size_flag:
            config = _with_size_flag(config, size_flag, argument(words, "--kv-offloading-backend"))
        _walk(config, total, platform=platform, version=version, ranks=ranks, env=env)
    private = (
        (total.private + total.pinned) * engines + beside_bytes if expected_host_bytes is None else expected_host_bytes
    )
    shm = total.shm * engines if expected_shm_bytes is None else expected_shm_bytes
    facts = load_host_memory()
    processes = facts.processes.base_bytes + facts.processes.worker_bytes * ranks * engines
    device = 0
    if platform == "cpu":
        device = int(_number(env.get("VLLM_CPU_KVCACHE_SPACE")) * _GIB) * engines + weight_bytes
    parts = [(processes, "processes"), (device, "device cache and weights"), (private, "host tier")]
    parts.append((shm, "host tier in /dev/shm"))
    multi_process = platform == "cpu" or ranks > 1
    queue = facts.queue.free_bytes if multi_process else 0
    return Needs(
        platform=platform,
        ranks=ranks * engines,
        tier_bytes=private + shm,
        shm_bytes=shm,
        queue_bytes=queue,
        host_bytes=sum(count for count, _ in parts),
        # Every tier is zeroed, or populated, when it is made; of the device cache only num_gpu_blocks are.
        filled_at_boot_bytes=processes + weight_bytes * (platform == "cpu") + shm + private,
        host_explanation=" + ".join(f"{name} {size(count)}" for count, name in parts if count),
        shm_explanation="the host tier" if shm > queue else "the queues between the server's processes",
        engine_ids=tuple(total.engine_ids),
        tier_dirs=tuple(total.dirs),
        object_stores=tuple(total.stores),
        servers=tuple(total.servers),
        packages=tuple(dict.fromkeys(total.packages)),
    )


def _with_size_flag(config: dict[str, Any], gib: float, backend: str | None) -> dict[str, Any]:
    """Do what vLLM does with ``--kv-offloading-size`` (config/vllm.py, 0.26.0:857 to 0.33.0:1151)."""
    if backend == "lmcache":
        return {**config, "kv_connector": "LMCacheMPConnector"}
    extra = config.get("kv_connector_extra_config")
    extra = {**(extra if isinstance(extra, Mapping) else {}), "cpu_bytes_to_use": int(gib * _GIB)}
    return {**config, "kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}


def _walk(
    config: Mapping[str, Any],
    total: _Sum,
    *,
    platform: Platform,
    version: str | None,
    ranks: int,
    env: Mapping[str, str],
) -> None:
    raw = config.get("kv_connector_extra_config")
    extra: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    name = config.get("kv_connector")
    if isinstance(config.get("engine_id"), str):
        total.engine_ids.append(config["engine_id"])
    if name == "MultiConnector":
        children = extra.get("connectors")
        for child in children if isinstance(children, list) else []:
            if isinstance(child, Mapping):
                _walk(child, total, platform=platform, version=version, ranks=ranks, env=env)
    elif name == "OffloadingConnector":
        tiering = "Tiering" in str(extra.get("spec_name", ""))
        count = int(_number(extra.get("cpu_bytes_to_use")))
        try:
            where = backing_of("tiering" if tiering else "host", platform=platform, version=version).where
        except ValueError:
            where = "private"
        total.add(where, _power_of_two(count // ranks) * ranks if where == "pinned" else count)
        if tiering:
            _tiers(extra.get("secondary_tiers"), total)
    elif name == "SimpleCPUOffloadConnector":
        per_rank = int(_number(extra.get("cpu_bytes_to_use_per_rank")))
        shared = int(_number(extra.get("cpu_bytes_to_use"))) or _SIMPLE_CPU_DEFAULT_BYTES
        total.add("private", per_rank * ranks or shared)
        if extra.get("kv_offload_backend") == "disk" and isinstance(extra.get("disk_path"), str):
            total.dirs.append(Path(extra["disk_path"]))
    elif name in {"LMCacheConnectorV1", "KVOffloadLMCacheConnector"}:
        total.packages.append("lmcache")
        _lmcache_in_process(extra, env, ranks, total)
    elif name == "LMCacheMPConnector":
        total.packages.append("lmcache")
        _lmcache_server(extra, total)
    elif name in {"ExampleConnector", "ExampleHiddenStatesConnector"}:
        if isinstance(extra.get("shared_storage_path"), str):
            total.dirs.append(Path(extra["shared_storage_path"]))
    elif isinstance(name, str) and name.startswith("Nixl"):
        total.packages.append("nixl")


def _tiers(tiers: object, total: _Sum) -> None:
    for tier in tiers if isinstance(tiers, list) else []:
        if not isinstance(tier, Mapping):
            continue
        if tier.get("type") == "fs" and isinstance(tier.get("root_dir"), str):
            total.dirs.append(Path(tier["root_dir"]))
        if tier.get("type") in {"obj", "p2p"}:
            total.packages.append("nixl")
        if tier.get("type") == "obj":
            total.packages.append("nixl:OBJ")
        store = tier.get("store_config")
        if tier.get("type") == "obj" and isinstance(store, Mapping) and store.get("bucket"):
            total.stores.append(object_store(store, prefix=str(tier.get("prefix", ""))))


def object_store(config: Mapping[str, Any], *, prefix: str = "") -> ObjectStore:
    """Read vLLM's ``store_config`` of a tier of type ``obj``."""

    def text(key: str) -> str | None:
        value = config.get(key)
        return str(value) if value not in (None, "") else None

    return ObjectStore(
        bucket=str(config["bucket"]),
        endpoint=text("endpoint_override") or "",
        scheme=text("scheme") or "http",
        access_key=text("access_key"),
        secret_key=text("secret_key"),
        session_token=text("session_token"),
        region=text("region") or "us-east-1",
        ca_bundle=text("ca_bundle"),
        prefix=prefix,
    )


def _lmcache_in_process(extra: Mapping[str, Any], env: Mapping[str, str], ranks: int, total: _Sum) -> None:
    def setting(key: str) -> object:
        return extra.get(f"lmcache.{key}", env.get(f"LMCACHE_{key.upper()}"))

    raw = setting("max_local_cpu_size")
    gib = _LMCACHE_DEFAULT_GIB if raw is None else _number(raw)
    total.add("private", int(gib * _GIB) * ranks)
    disk = setting("local_disk")
    if isinstance(disk, str) and disk:
        total.dirs.append(Path(disk.removeprefix("file://")))
    remote = setting("remote_url")
    if isinstance(remote, str):
        parts = urlsplit(remote)
        if parts.hostname and parts.port:
            total.servers.append((f"LMCache remote store {parts.scheme}://", parts.hostname, parts.port))


def _lmcache_server(extra: Mapping[str, Any], total: _Sum) -> None:
    if extra.get("lmcache.mp.autostart") is True:
        words = str(extra.get("lmcache.mp.autostart.server_args", "")).split()
        total.add("private", int(_number(argument(words, "--l1-size-gb")) * _GIB))
        return
    if extra.get("lmcache.mp.port") == 0:
        return  # a server of ours, on a port that is found when it starts
    urls = extra.get("lmcache.mp.server_urls")
    if isinstance(urls, str):
        urls = [url for url in urls.split(",") if url.strip()]
    for url in urls if isinstance(urls, list) else [extra.get("lmcache.mp.host", "tcp://localhost")]:
        text = str(url).strip()
        parts = urlsplit(text if "://" in text else f"tcp://{text}")
        try:
            port = parts.port or int(_number(extra.get("lmcache.mp.port"))) or _LMCACHE_MP_PORT
        except ValueError as error:
            raise ConfigError(
                section="kv_connector_extra_config", key="lmcache.mp", got=repr(text), expected="host and port"
            ) from error
        total.servers.append(("LMCache server", parts.hostname or "localhost", port))


def beside_bytes(command: Sequence[str]) -> int:
    """Return the memory that a process beside the server takes at once: an LMCache server its whole L1 (on a CPU)."""
    return int(_number(argument(command, "--l1-size-gb")) * _GIB)


def transfer_config_of(words: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the JSON of ``--kv-transfer-config`` in a command line, ``None`` when it is absent or not JSON."""
    raw = argument(words, "--kv-transfer-config")
    try:
        value = json.loads(raw) if raw else None
    except ValueError:
        return None  # vLLM refuses it with a message of its own
    return value if isinstance(value, Mapping) else None


def tensor_files(model: Path) -> Iterator[Path]:
    """Yield the weight files of a model directory."""
    for pattern in ("*.safetensors", "*.bin"):
        files = sorted(model.glob(pattern))
        if files:
            yield from files
            return


def _count(words: Sequence[str], *names: str) -> int:
    return max(1, int(_number(argument(words, *names))))


def _number(value: object) -> float:
    """Read a number as vLLM would where it can; what it would refuse counts as nothing here."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        number = float(value)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and number > 0 else 0.0


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count > 0 else 0
