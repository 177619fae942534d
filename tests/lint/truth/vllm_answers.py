"""Asks a real vLLM what it makes of configurations. Runs inside the engine's interpreter, knows nothing of the project.

Reads a JSON list of questions from standard input and writes the list of answers to the file named by the first
argument. A question is ``{"ask": NAME, ...}``; an answer is ``{"ok": ..., ...}`` or ``{"error": TEXT}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def parser() -> Any:
    """Return the argument parser of ``vllm serve``."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def transfer(config: Any) -> dict[str, Any] | None:
    """Return the fields of a KVTransferConfig that matter here."""
    if config is None:
        return None
    return {
        "kv_connector": config.kv_connector,
        "kv_role": config.kv_role,
        "extra": dict(config.kv_connector_extra_config),
    }


def parse(question: dict[str, Any]) -> dict[str, Any]:
    """Run the real argument parser over ``argv`` (after ``serve``)."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(stderr):
            args = parser().parse_args(question["argv"])
    except SystemExit:
        return {"error": stderr.getvalue()[-1500:]}
    return {
        "ok": True,
        "transfer": transfer(args.kv_transfer_config),
        "size": args.kv_offloading_size,
        "prefix": args.enable_prefix_caching,
        "model_len": args.max_model_len,
        "port": args.port,
    }


def yaml(question: dict[str, Any]) -> dict[str, Any]:
    """Run the parser over ``--config FILE`` with that text."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve.yaml"
        path.write_text(question["text"], encoding="utf-8")
        return parse({"argv": ["serve", "--config", str(path)]})


def effective(question: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine's configuration makes of the flags."""
    from vllm.config import CacheConfig, KVTransferConfig, VllmConfig

    given = question.get("transfer")
    with environment(question.get("env", {})):
        config = VllmConfig(
            cache_config=CacheConfig(**question.get("cache", {})),
            kv_transfer_config=KVTransferConfig(**given) if given is not None else None,
        )
    return {"ok": True, "transfer": transfer(config.kv_transfer_config)}


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Any:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def connector(question: dict[str, Any]) -> dict[str, Any]:
    """Look a connector up as the engine does."""
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    KVConnectorFactory.get_connector_class(KVTransferConfig(**question["transfer"]))
    return {"ok": True}


def registered(question: dict[str, Any]) -> dict[str, Any]:
    """Return the names in the factory's registry."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    return {"ok": True, "names": sorted(KVConnectorFactory._registry)}


def flags(question: dict[str, Any]) -> dict[str, Any]:
    """Return every long option of the parser."""
    return {"ok": True, "names": sorted({o for a in parser()._actions for o in a.option_strings if o.startswith("--")})}


def spec(question: dict[str, Any]) -> dict[str, Any]:
    """Construct the offloading spec that ``extra`` asks for, with a cache of 64 KiB a block."""
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    extra = question["extra"]
    cls = OffloadingSpecFactory.get_spec_cls(extra)
    group = SimpleNamespace(tokens_per_block=16)
    config = SimpleNamespace(
        extra_config=extra,
        engine_id="answers",
        enable_kv_cache_events=False,
        groups=[group],
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1, block_size=16),
        parallel=SimpleNamespace(world_size=1, rank=0),
        worker_kv_bytes_per_block=65536,
        replicated_layout=False,
    )
    made = cls(config)
    answer: dict[str, Any] = {
        "ok": True,
        "chunks": getattr(made, "num_chunks", getattr(made, "num_blocks", None)),
        "prompt_only": made.offload_prompt_only,
        "class": type(made).__name__,
    }
    if question.get("manager"):
        made.get_manager()
    return answer


def tier(question: dict[str, Any]) -> dict[str, Any]:
    """Construct a secondary tier far enough to see whether its keys are known."""
    from vllm.v1.kv_offload.tiering import factory

    made = factory.SecondaryTierFactory
    entry = dict(question["tier"])
    lookup = getattr(made, "get_tier_class", None)
    if lookup is not None:
        cls = lookup(entry)
    else:
        if entry.get("type") not in made._registry:
            raise ValueError(f"unknown tier type {entry.get('type')}")
        cls = made._registry[entry["type"]]()
    import inspect

    entry.pop("type", None)
    inspect.signature(cls.__init__).bind(None, offloading_spec=None, primary_kv_view=None, tier_type="x", **entry)
    return {"ok": True}


def simple(question: dict[str, Any]) -> dict[str, Any]:
    """Construct SimpleCPUOffloadConnector's scheduler side with prefix caching off and see whether it does anything."""
    from vllm.config import CacheConfig, KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector

    config = SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            kv_connector="SimpleCPUOffloadConnector", kv_role="kv_both", kv_connector_extra_config=question["extra"]
        ),
        cache_config=CacheConfig(enable_prefix_caching=question["prefix"]),
        parallel_config=SimpleNamespace(world_size=1),
    )
    made = SimpleCPUOffloadConnector(config, KVConnectorRole.SCHEDULER, SimpleNamespace(kv_cache_groups=[]))
    return {"ok": True, "working": made.scheduler_manager is not None}


def multi(question: dict[str, Any]) -> dict[str, Any]:
    """Resolve the children of a MultiConnector."""
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    config = SimpleNamespace(kv_transfer_config=KVTransferConfig(**question["transfer"]))
    MultiConnector._get_connector_classes_and_configs(config)
    return {"ok": True}


def hash_seed(question: dict[str, Any]) -> dict[str, Any]:
    """Return the first hash of a chain, to be compared between processes."""
    from vllm.v1.core import kv_cache_utils

    try:
        from vllm.utils.hashing import get_hash_fn_by_name
    except ImportError:
        from vllm.utils import get_hash_fn_by_name
    kv_cache_utils.init_none_hash(get_hash_fn_by_name(question["algorithm"]))
    return {"ok": True, "hash": bytes(kv_cache_utils.NONE_HASH).hex()}


ANSWERS = {
    f.__name__: f for f in (parse, yaml, effective, connector, registered, flags, spec, tier, simple, multi, hash_seed)
}


def main() -> None:
    """Answer all questions."""
    answers = []
    for question in json.load(sys.stdin):
        try:
            answers.append(ANSWERS[question["ask"]](question))
        except BaseException as error:
            answers.append({"error": f"{type(error).__name__}: {error}"[-1500:]})
    Path(sys.argv[1]).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
