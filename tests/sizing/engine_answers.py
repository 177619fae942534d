"""Run inside an interpreter that has vLLM: start real engine cores for tiny models, and print what they allocated.

    PYTHON engine_answers.py CONFIGS.json

``CONFIGS.json`` maps names to configurations. Each gets a real ``EngineCore`` on the CPU backend (worker, model with
random weights, KV cache, scheduler with the OffloadingConnector and a host tier of 64 MiB). The last line printed is
JSON: name to numbers. ``PYTHONPATH`` must hold the folder of ``kvoffload_cpu_spec``.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

CPU_BYTES = 64 * 2**20
BLOCKS_PER_CHUNK = 3


def answer(config: dict[str, Any]) -> dict[str, Any]:
    """Start one engine core and read its cache."""
    from vllm.config import KVTransferConfig
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    built: list[tuple[Any, Any]] = []
    create = OffloadingSpecFactory.create_spec

    def create_and_keep(config: Any, *rest: Any, **named: Any) -> Any:
        spec = create(config, *rest, **named)
        built.append((config, spec))
        return spec

    OffloadingSpecFactory.create_spec = create_and_keep
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        arguments = EngineArgs(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=2048,
            max_num_batched_tokens=2048,
            num_gpu_blocks_override=400,
            kv_transfer_config=KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                kv_connector_extra_config={
                    "spec_name": "KVOffloadHostSpec",
                    "spec_module_path": "kvoffload_cpu_spec",
                    "cpu_bytes_to_use": CPU_BYTES,
                    "blocks_per_chunk": BLOCKS_PER_CHUNK,
                },
            ),
        )
        settings = arguments.create_engine_config()
        core = EngineCore(settings, Executor.get_class(settings), log_stats=False)
    try:
        scheduler: Any = core.scheduler
        cache = scheduler.kv_cache_config
        offloading, spec = built[-1]
        _, concurrency = _capacity(kv_cache_utils, settings, cache)
        return {
            "block_size": settings.cache_config.block_size,
            "groups": sorted(
                [len(group.layer_names), group.kv_cache_spec.block_size, group.kv_cache_spec.page_size_bytes]
                for group in cache.kv_cache_groups
            ),
            "num_blocks": cache.num_blocks,
            "bytes_per_block": offloading.worker_kv_bytes_per_block,
            "chunks": getattr(spec, "num_chunks", getattr(spec, "num_blocks", None)),
            "blocks_per_request": round(cache.num_blocks / concurrency, 6),
            "async_scheduling": bool(settings.scheduler_config.async_scheduling),
            "max_in_flight_tokens": getattr(settings, "max_in_flight_tokens", None),
        }
    finally:
        OffloadingSpecFactory.create_spec = create
        core.shutdown()
        del core
        cleanup_dist_env_and_memory()
        gc.collect()


def _capacity(utils: Any, settings: Any, cache: Any) -> tuple[int, float]:
    if hasattr(utils, "get_kv_cache_capacity"):
        tokens, concurrency = utils.get_kv_cache_capacity(settings, cache)
        return int(tokens), float(concurrency)
    return 0, float(utils.get_max_concurrency_for_kv_cache_config(settings, cache))


def main(path: str) -> None:
    """Answer for every configuration and print one JSON line."""
    import vllm

    configs = json.loads(Path(path).read_text(encoding="utf-8"))
    answers = {name: answer(config) for name, config in configs.items()}
    print(json.dumps({"vllm": vllm.__version__, "answers": answers}))


if __name__ == "__main__":
    main(sys.argv[1])
