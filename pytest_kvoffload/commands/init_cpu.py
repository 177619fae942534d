"""A launch made for a GPU, on the managed engine without one: what is replaced, and by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GPU_ONLY: Mapping[str, str] = {
    "--gpu-memory-utilization": "the device cache is [engine] num_gpu_blocks",
    "--tensor-parallel-size": "one rank",
    "-tp": "one rank",
    "--pipeline-parallel-size": "one rank",
    "-pp": "one rank",
    "--quantization": "the test model is not quantized",
    "-q": "the test model is not quantized",
    "--attention-backend": "the CPU backend has its own",
    "--enforce-eager": "always so on the CPU backend",
    "--no-enable-chunked-prefill": "the CPU backend decides",
    "--enable-chunked-prefill": "the CPU backend decides",
}
OF_THE_MODEL: Mapping[str, str] = {
    "--max-model-len": "the test model has 8192 tokens",
    "--dtype": "the test model is bfloat16",
    "--tokenizer": "the test model has its own",
    "--tokenizer-mode": "the test model has its own",
    "--chat-template": "the test model has none",
    "--enable-auto-tool-choice": "the test model has no template",
    "--tool-call-parser": "the test model has no template",
    "--reasoning-parser": "the test model has no template",
    "--trust-remote-code": "the test model needs none",
    "--revision": "the test model has none",
    "--load-format": "the test model is on disk",
    "--enable-lora": "the test model has no adapter",
    "--max-loras": "the test model has no adapter",
    "--served-model-name": "the test model has its own",
}
_TIER_GIB = 1.0
_CLUSTER_WORDS = ("CONTROLLER", "P2P", "WORKER_PORTS", "WORKER_HEARTBEAT", "NIXL", "REMOTE_", "INSTANCE_ID")
LMCACHE_DEFAULT_GIB = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """A launch for the cpu engine, and one sentence for each thing that is not as it was."""

    args: tuple[str, ...]
    env: Mapping[str, str]
    connector: Mapping[str, Any] | None
    connector_env: Mapping[str, str]
    notes: tuple[str, ...]


def for_cpu(
    *,
    model: str,
    keep_model: bool,
    args: Sequence[str],
    env: Mapping[str, str],
    connector: Mapping[str, Any] | None,
    connector_env: Mapping[str, str],
) -> Adapted:
    """Replace what only a GPU, or only the launch's own model, can do."""
    notes = [] if keep_model else [f"the model {model}: the generated test model stands for it"]
    kept, dropped = _split(args, GPU_ONLY if keep_model else {**GPU_ONLY, **OF_THE_MODEL})
    notes += [f"{word}: {why}" for word, why in dropped]
    env = {key: value for key, value in env.items() if key != "CUDA_VISIBLE_DEVICES"}
    config = (connector or {}).get("kv_transfer_config")
    if isinstance(config, Mapping) and config.get("kv_connector") == "LMCacheConnectorV1":
        table, further, words = _lmcache(connector_env, env.get("PYTHONHASHSEED"))
        env.pop("PYTHONHASHSEED", None)
        return Adapted(args=kept, env=env, connector=table, connector_env=further, notes=(*notes, *words))
    if connector is not None and isinstance(connector.get("size_gib"), float) and connector["size_gib"] > _TIER_GIB:
        notes.append(_smaller(f"{connector['size_gib']:g} GiB"))
        connector = {**connector, "size_gib": _TIER_GIB}
    return Adapted(args=kept, env=env, connector=connector, connector_env=connector_env, notes=tuple(notes))


def _lmcache(env: Mapping[str, str], seed: str | None) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """LMCache inside vLLM: as shipped it has no connector for the CPU backend, our kind of that name has."""
    further = dict(env)
    notes = ["LMCacheConnectorV1: kind 'lmcache_inprocess' gives it a copy for the CPU backend"]
    size = _float(further.pop("LMCACHE_MAX_LOCAL_CPU_SIZE", "")) or LMCACHE_DEFAULT_GIB
    further.pop("LMCACHE_LOCAL_CPU", None)
    if size > _TIER_GIB:
        notes.append(_smaller(f"{size:g} GiB"))
    table: dict[str, Any] = {"kind": "lmcache_inprocess", "max_local_cpu_size": min(size, _TIER_GIB)}
    chunk = further.pop("LMCACHE_CHUNK_SIZE", "")
    if chunk.isdigit():
        table["chunk_size"] = int(chunk)
    if seed is not None:
        table["hash_seed"] = int(seed) if seed.isdigit() else seed
    for name in [name for name in further if any(word in name for word in _CLUSTER_WORDS)]:
        notes.append(f"{name}: it needs other pods")
        further.pop(name)
    return table, further, notes


def _split(args: Sequence[str], dropped: Mapping[str, str]) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    kept: list[str] = []
    gone: list[tuple[str, str]] = []
    position = 0
    while position < len(args):
        word = args[position]
        values = 1
        while position + values < len(args) and not args[position + values].startswith("-"):
            values += 1
        name = word.partition("=")[0].replace("_", "-")
        if name in dropped:
            gone.append((" ".join(args[position : position + values]), dropped[name]))
        else:
            kept += args[position : position + values]
        position += values
    return tuple(kept), gone


def _smaller(size: str) -> str:
    return f"the tier of {size}: {_TIER_GIB:g} GiB here, the test model's KV is small"


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
