"""What vLLM's CPU backend needs before an offload connector runs on it: our offload specs, by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SPEC_MODULE = "kvoffload_cpu_spec"
LMCACHE_MODULE = "kvoffload_lmcache_connector"
"""Gives LMCache's in-process mode, which has no connector for the CPU platform, one."""
HOST_SPEC = "KVOffloadHostSpec"
TIERING_SPEC = "KVOffloadTieringSpec"
VLLM_HOST_SPEC, VLLM_TIERING_SPEC = "CPUOffloadingSpec", "TieringOffloadingSpec"


def inside_dir() -> Path:
    """The folder that goes on the server's PYTHONPATH when the cpu platform needs a module of ours."""
    return Path(__file__).resolve().parent.parent / "inside"


def extra_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = config.get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def with_cpu_spec(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Point an OffloadingConnector at our spec where vLLM's own refuses the CPU platform.

    Children of a MultiConnector are treated alike. A configuration whose extra part is not a table is left alone:
    vLLM refuses it, and that refusal is what the user should see.
    """
    if config.get("kv_connector") == "MultiConnector":
        children = extra_config(config).get("connectors")
        if not isinstance(children, list):
            return config, []
        done = [with_cpu_spec(dict(child)) if isinstance(child, Mapping) else (child, []) for child in children]
        extra = {**extra_config(config), "connectors": [child for child, _ in done]}
        return {**config, "kv_connector_extra_config": extra}, [note for _, notes in done for note in notes]
    if config.get("kv_connector") != "OffloadingConnector":
        return config, []
    raw_extra = config.get("kv_connector_extra_config", {})
    if not isinstance(raw_extra, Mapping) or "spec_module_path" in raw_extra:
        return config, []
    named = raw_extra.get("spec_name", VLLM_HOST_SPEC)
    spec = {VLLM_HOST_SPEC: HOST_SPEC, VLLM_TIERING_SPEC: TIERING_SPEC}.get(named)
    if spec is None:
        return config, []
    extra = {**raw_extra, "spec_name": spec, "spec_module_path": SPEC_MODULE}
    note = f"{named} was replaced by {SPEC_MODULE}.{spec}: vLLM's own worker refuses its CPU backend"
    return {**config, "kv_connector_extra_config": extra}, [note]


def native_size_flag(words: tuple[str, ...]) -> bool:
    """Whether the arguments turn native offload on by ``--kv-offloading-size``."""
    names = [word.split("=", 1)[0] for word in words]
    if "--kv-offloading-size" not in names or "--kv-transfer-config" in names:
        return False
    joined = " ".join(words).replace("=", " ")
    return "--kv-offloading-backend lmcache" not in joined


def joined_path(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first
