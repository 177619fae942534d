"""The kinds of connector of our own configuration, and the options of each: what a launch takes and lint knows.

One list for both: a launch refuses any other option (``engine/connectors``), and lint says the same of the file
(``lint/sources/own_transfer.py``, KVO318).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["KIND_OPTIONS", "TABLE_KEYS", "KindOptions"]

TABLE_KEYS = ("kind", "args", "env")
"""What every table ``[connectors.NAME]`` takes beside the options of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOptions:
    """The options of one kind, by what becomes of them."""

    connector: str | None = None
    """vLLM's connector that the kind stands for; ``None`` when it stands for none, or the options name it."""
    keys: tuple[str, ...] = ()
    """Handed to that connector under the same name, in ``kv_connector_extra_config``."""
    settings: tuple[str, ...] = ()
    """LMCache's settings by its own names, handed over as ``LMCACHE_*`` variables."""
    ours: tuple[str, ...] = ()
    """Read by us alone."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every option that the kind takes."""
        return (*self.settings, *self.ours, *self.keys)


_HOST_KEYS = (
    "cpu_bytes_to_use",
    "blocks_per_chunk",
    "block_size",
    "eviction_policy",
    "store_threshold",
    "offload_prompt_only",
)
_LINK = ("link_bandwidth_bytes_per_second", "link_latency_seconds")
"""Of our own offload spec on vLLM's CPU backend; vLLM's spec does not know them."""

KIND_OPTIONS: Mapping[str, KindOptions] = MappingProxyType(
    {
        "recompute": KindOptions(),
        "raw": KindOptions(ours=("kv_transfer_config",)),
        "native": KindOptions(
            connector="OffloadingConnector", keys=_HOST_KEYS, ours=("size_gib", *_LINK, "extra_config", "via")
        ),
        "tiering": KindOptions(
            connector="OffloadingConnector",
            keys=(*_HOST_KEYS, "secondary_tiers"),
            ours=("size_gib", *_LINK, "extra_config"),
        ),
        "simple_cpu": KindOptions(
            connector="SimpleCPUOffloadConnector",
            keys=(
                "cpu_bytes_to_use",
                "cpu_bytes_to_use_per_rank",
                "lazy_offload",
                "kv_offload_backend",
                "disk_path",
                "disk_capacity_bytes",
                "disk_buffer_slots",
                "use_page_cache",
                "num_cpu_blocks",
            ),
            ours=("size_gib", "extra_config"),
        ),
        "example": KindOptions(
            connector="ExampleConnector", keys=("shared_storage_path",), ours=("clear", "extra_config")
        ),
        "multi": KindOptions(connector="MultiConnector", ours=("connectors",)),
        "lmcache_mp": KindOptions(
            connector="LMCacheMPConnector",
            ours=(
                "server",
                "via",
                "url",
                "http_url",
                "l1_size_gb",
                "chunk_size",
                "eviction_policy",
                "l2",
                "transfer_mode",
                "mq_timeout_seconds",
                "server_args",
                "extra_config",
            ),
        ),
        "lmcache_inprocess": KindOptions(
            connector="LMCacheConnectorV1",
            settings=(
                "max_local_cpu_size",
                "local_cpu",
                "local_disk",
                "max_local_disk_size",
                "remote_url",
                "remote_serde",
                "chunk_size",
                "pre_caching_hash_algorithm",
                "config_file",
            ),
            ours=("remote", "flush_remote", "hash_seed", "config", "extra_config"),
        ),
    }
)
