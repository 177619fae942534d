"""vLLM's SimpleCPUOffloadConnector: host memory or a disk behind CUDA streams."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS
from pytest_kvoffload.catalog.lint import connector
from pytest_kvoffload.engine.connectors.interface import ConnectorKind, LaunchContext, LaunchParts
from pytest_kvoffload.engine.options import OptionReader
from pytest_kvoffload.errors import ConfigError, did_you_mean

_NAME = "SimpleCPUOffloadConnector"
_DISK_ONLY: Mapping[str, str] = MappingProxyType(
    {"disk_path": "text", "disk_capacity_bytes": "integer", "disk_buffer_slots": "integer", "use_page_cache": "boolean"}
)


def _build(options: OptionReader, context: LaunchContext) -> LaunchParts:
    options.only(SIMPLE_CPU.options, hint="; extra_config = {...} passes any other key to vLLM unchecked")
    if context.cpu_platform:
        raise ConfigError(
            section=options.section,
            key="kind",
            got="'simple_cpu'",
            expected=f"an engine on a GPU: {_NAME} copies on CUDA streams and dies on vLLM's CPU backend "
            "(kind = 'native' runs there)",
        )
    extra: dict[str, Any] = {}
    if (per_rank := options.integer("cpu_bytes_to_use_per_rank", at_least=1)) is not None:
        if options.has("size_gib") or options.has("cpu_bytes_to_use"):
            raise options.fail(
                "cpu_bytes_to_use_per_rank", "a size for each rank or one for all (size_gib), not both: this one wins"
            )
        extra["cpu_bytes_to_use_per_rank"] = per_rank
    else:
        extra["cpu_bytes_to_use"] = options.host_bytes()
    if (lazy := options.boolean("lazy_offload")) is not None:
        extra["lazy_offload"] = lazy
    if (blocks := options.integer("num_cpu_blocks", at_least=1)) is not None:
        extra["num_cpu_blocks"] = blocks
    _disk(options, extra)
    for key in extra:
        _check_version(options, key, context)
    extra |= options.mapping("extra_config")
    return LaunchParts(
        kv_transfer_config={"kv_connector": _NAME, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    )


def _disk(options: OptionReader, extra: dict[str, Any]) -> None:
    backend = options.text("kv_offload_backend")
    if backend not in (None, "cpu", "disk"):
        raise options.fail("kv_offload_backend", "'cpu' or 'disk'", got=backend, hint=did_you_mean(backend, ("disk",)))
    if backend is not None:
        extra["kv_offload_backend"] = backend
    given = [key for key in _DISK_ONLY if options.has(key)]
    if backend != "disk" and given:
        raise options.fail(given[0], "kv_offload_backend = 'disk' beside it: vLLM ignores it otherwise")
    if backend == "disk" and not options.has("disk_path"):
        raise options.fail("disk_path", "a directory: the disk backend needs it")
    for key in given:
        if key == "disk_path":
            extra[key] = options.text(key)
        elif key == "use_page_cache":
            extra[key] = options.boolean(key)
        else:
            extra[key] = options.integer(key, at_least=1)


def _check_version(options: OptionReader, key: str, context: LaunchContext) -> None:
    since = connector(_NAME)["extra"].get(key, {}).get("since")
    if context.lacks(since):
        raise options.fail(key, f"vLLM {since} or later, which reads it: this server is {context.server_version}")


SIMPLE_CPU = ConnectorKind(
    name="simple_cpu",
    summary="SimpleCPUOffloadConnector: host memory or a disk, on a GPU only",
    options=KIND_OPTIONS["simple_cpu"].names,
    build=_build,
)
