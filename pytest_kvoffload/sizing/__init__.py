"""Sizes: what a model keeps in the KV cache, and the tier that a workload needs.

Public: :func:`model_kv` (a configuration to bytes), :func:`explicit_kv` (numbers to bytes), :func:`size` (a workload to
a tier), :func:`chunks` (a tier to chunks), and the records :class:`Serving`, :class:`Workload`, :class:`Device`,
:class:`ModelKV`, :class:`SizeResult`.
"""

from pytest_kvoffload.sizing.chunks import chunk_bytes, chunks, simple_cpu_blocks
from pytest_kvoffload.sizing.config_file import locate_config, read_config
from pytest_kvoffload.sizing.model import explicit_kv, model_kv
from pytest_kvoffload.sizing.result import ModelKV
from pytest_kvoffload.sizing.serving import Serving
from pytest_kvoffload.sizing.tier import Device, SizeResult, Workload, device_from_blocks, device_from_gpu, size
from pytest_kvoffload.sizing.units import parse_fraction, parse_size

__all__ = [
    "Device",
    "ModelKV",
    "Serving",
    "SizeResult",
    "Workload",
    "chunk_bytes",
    "chunks",
    "device_from_blocks",
    "device_from_gpu",
    "explicit_kv",
    "locate_config",
    "model_kv",
    "parse_fraction",
    "parse_size",
    "read_config",
    "simple_cpu_blocks",
    "size",
]
