"""Ask an installed vLLM what it keeps in the KV cache of a model, without a GPU and without weights.

Run with the interpreter that has vLLM; each line of the input is ``{"name", "config", "tp", "kv_cache_dtype"}``::

    PYTHON ask_vllm.py QUESTIONS.jsonl ANSWERS.jsonl

The platform poses as an 80 GiB NVIDIA H100, compiled extensions are stand-ins, and the model's real constructor runs on
the meta device; then vLLM's own code chooses block size, specs, groups and bytes per block, in its own order. Data of
``tests/sizing/data`` was made this way. Written for vLLM 0.32; nothing of the package imports it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

EXTENSIONS = (
    "vllm._C",
    "vllm._moe_C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm._qutlass_C",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.third_party.flashmla.flash_mla_interface",
)
PACKAGES = ("torchvision", "torchaudio", "torchcodec", "tilelang")
"""Replaced by stand-ins once transformers is loaded, which must not see them."""
MEMORY = 80 * 2**30
LENGTHS = (1, 1024, 8192, 32768, 131072)
TENSOR_MAKERS = ("empty", "zeros", "ones", "full", "arange", "tensor", "rand", "randn", "zeros_like", "empty_like")


class Anything:
    """Answers every call and attribute with another of its kind."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) and not isinstance(args[0], Anything) else Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Any:
        return iter(())

    def __getitem__(self, key: object) -> Any:
        return Anything()


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StandIn(types.ModuleType):
    """A module that has every name."""

    __path__: list[str] = []  # noqa: RUF012 - a module attribute that the import system reads

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any = _AnyClass(name, (), {}) if name[0].isupper() else Anything()
        setattr(self, name, made)
        return made


class Finder:
    """Makes stand-ins of the packages above."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Claim a name."""
        if name.split(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, cls, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make the module."""
        return StandIn(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        """Give it a version."""
        vars(module)["__version__"] = "0"


def pose() -> None:
    """Make torch and vLLM believe in an H100."""
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", CUDA_VISIBLE_DEVICES="")
    import torch
    import torch._ops

    for name in ("transformers.image_utils", "transformers.processing_utils"):
        importlib.import_module(name)
    sys.meta_path.append(Finder)
    for name in EXTENSIONS:
        module = StandIn(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    imported: list[bool] = []
    _pose_torch(torch, imported)
    import vllm.platforms as platforms

    matches = platforms.vllm_version_matches_substr
    platforms.vllm_version_matches_substr = lambda text: text != "cpu" and matches(text)
    platforms._current_platform = _platform()
    import vllm.model_executor.models.registry as registry

    registry._run_in_subprocess = lambda inspect: inspect()
    registry._LazyRegisteredModel._save_modelinfo_to_cache = lambda *args, **kwargs: None
    registry._LazyRegisteredModel._load_modelinfo_from_cache = lambda *args, **kwargs: None
    import vllm.v1.attention.backends.flash_attn
    import vllm.v1.attention.ops.flashmla  # noqa: F401
    from vllm.engine import arg_utils  # noqa: F401
    from vllm.model_executor.model_loader import utils  # noqa: F401

    imported.append(True)


def pose_kernels() -> None:
    """Say yes where vLLM asks whether FlashAttention 3 and FlashMLA are there; repeat after imports."""
    answers: dict[str, Any] = {
        "get_flash_attn_version": lambda *args, **kwargs: 3,
        "is_flash_attn_varlen_func_available": lambda *args, **kwargs: True,
        "is_fa_version_supported": lambda version, *args, **kwargs: version in (2, 3),
        "flash_attn_supports_fp8": lambda *args, **kwargs: True,
        "flash_attn_supports_mla": lambda *args, **kwargs: True,
        "flash_attn_supports_sinks": lambda *args, **kwargs: True,
        "is_flashmla_dense_supported": lambda *args, **kwargs: (True, None),
        "is_flashmla_sparse_supported": lambda *args, **kwargs: (True, None),
    }
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("vllm"):
            names = vars(module)
            names.update({name: answer for name, answer in answers.items() if name in names})


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's numbers for one model, or ``error`` with the reason."""
    answer = dict(question)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(question["config"]), encoding="utf-8")
        try:
            answer.update(_numbers(folder, int(question.get("tp", 1)), str(question.get("kv_cache_dtype", "auto"))))
        except Exception as error:  # whatever vLLM says is the answer
            answer["error"] = f"{type(error).__name__}: {str(error)[:600]}"
    return answer


def _numbers(folder: str, tp: int, kv_cache_dtype: str) -> dict[str, Any]:
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.worker_base import WorkerBase

    arguments = EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        tensor_parallel_size=tp,
        kv_cache_dtype=kv_cache_dtype,
        max_num_batched_tokens=8192,
    )
    settings = arguments.create_engine_config()
    _groups(tp)
    pose_kernels()
    with (
        set_current_vllm_config(settings),
        torch.device("meta"),
        set_default_torch_dtype(settings.model_config.dtype),
    ):
        model = initialize_model(vllm_config=settings)
    pose_kernels()
    with set_current_vllm_config(settings):
        current_platform.update_block_size_for_backend(settings)
        specs = get_kv_cache_spec(settings)
        worker = types.SimpleNamespace(vllm_config=settings)
        layouts = WorkerBase.get_supported_kv_cache_layouts(worker)
        layout = resolve_kv_cache_layout(settings, [layouts], list(specs.values()))
        settings.cache_config.kv_cache_layout = layout.name
        groups = kv_cache_utils.get_kv_cache_groups(settings, dict(specs))
    pool = kv_cache_utils._pool_bytes_per_block(settings, groups)
    longest = settings.model_config.max_model_len
    requests = {}
    for length in sorted({length for length in LENGTHS if length < longest} | {longest}):
        settings.model_config.max_model_len = length
        needs = [(g.kv_cache_spec.max_memory_usage_bytes(settings), g.kv_cache_spec.page_size_bytes) for g in groups]
        requests[str(length)] = pool * sum(-(-need // page) for need, page in needs)
    del model
    return {
        "block_size": settings.cache_config.block_size,
        "per_layer": [{**_spec(spec), "layers": 1} for spec in specs.values()],
        "groups": [{**_spec(group.kv_cache_spec), "layers": len(group.layer_names)} for group in groups],
        "padded_bytes_per_block": pool,
        "bytes_for_one_request_at_len": requests,
        "max_model_len": longest,
        "max_num_batched_tokens": settings.scheduler_config.max_num_batched_tokens,
        "max_in_flight_tokens": settings.max_in_flight_tokens,
    }


def _spec(spec: Any) -> dict[str, Any]:
    data = {"type": type(spec).__name__, "block_size": spec.block_size, "page_size_bytes": spec.page_size_bytes}
    for name in ("num_kv_heads", "head_size", "head_size_v", "sliding_window", "attention_chunk_size"):
        if getattr(spec, name, None) is not None:
            data[name] = getattr(spec, name)
    return data


def _platform() -> Any:
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    answers: dict[str, Any] = {
        "get_device_capability": classmethod(lambda cls, device_id=0: DeviceCapability(9, 0)),
        "get_device_name": classmethod(lambda cls, device_id=0: "NVIDIA H100 80GB HBM3"),
        "get_device_total_memory": classmethod(lambda cls, device_id=0: MEMORY),
        "get_device_uuid": classmethod(lambda cls, device_id=0: "GPU-0"),
        "is_fully_connected": classmethod(lambda cls, ids: True),
        "device_count": classmethod(lambda cls: 8),
        "num_compute_units": classmethod(lambda cls, device_id=0: 132),
        "check_if_supports_dtype": classmethod(lambda cls, dtype: True),
        "import_kernels": classmethod(lambda cls: None),
        "get_cuda_runtime_major": classmethod(lambda cls: 12),
    }
    return type("PosingPlatform", (CudaPlatformBase,), answers)()


def _pose_torch(torch: Any, imported: list[bool]) -> None:
    """Replace what asks the GPU. A missing operator is found only once vLLM is ``imported``: imports probe for them."""
    namespace = torch._ops._OpNamespace
    find = namespace.__getattr__

    def find_or_stand_in(self: Any, name: str) -> Any:
        try:
            return find(self, name)
        except AttributeError:
            supports = "support" in name
            if name.startswith("__") or not (imported or supports):
                raise
            return (lambda *args, **kwargs: False) if supports else Anything()

    namespace.__getattr__ = find_or_stand_in
    properties = types.SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        major=9,
        minor=0,
        total_memory=MEMORY,
        multi_processor_count=132,
        shared_memory_per_block_optin=232448,
        warp_size=32,
    )
    for name, answer in (("is_available", True), ("device_count", 8), ("current_device", 0)):
        setattr(torch.cuda, name, lambda *args, _answer=answer: _answer)
    torch.cuda.get_device_capability = lambda *args: (9, 0)
    torch.cuda.get_device_properties = lambda *args, **kwargs: properties
    torch.cuda.Stream = torch.cuda.Event = _AnyClass("Stream", (Anything,), {"__init__": lambda *a, **k: None})
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    item = torch.Tensor.item
    torch.Tensor.item = lambda self: 0 if self.is_meta else item(self)
    for name in TENSOR_MAKERS:
        setattr(torch, name, _on_meta(getattr(torch, name)))


def _on_meta(make: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if "cuda" in str(device) or (isinstance(device, int) and not isinstance(device, bool)):
            kwargs["device"] = "meta"
        return make(*args, **kwargs)

    return made


def _groups(tp: int) -> None:
    """Put stand-ins of the process groups in place: this is rank 0 of ``tp``."""
    import vllm.distributed.parallel_state as state

    for name, size in (("_TP", tp), ("_WORLD", tp), ("_EP", tp), ("_PP", 1), ("_DP", 1), ("_DCP", 1), ("_PCP", 1)):
        handle = types.SimpleNamespace(size=lambda size=size: size, rank=lambda: 0)
        group = Anything()
        vars(group).update(
            world_size=size,
            rank=0,
            rank_in_group=0,
            local_rank=0,
            ranks=list(range(size)),
            first_rank=0,
            last_rank=size - 1,
            is_first_rank=True,
            is_last_rank=True,
            device_group=handle,
            cpu_group=handle,
        )
        setattr(state, name, group)


if __name__ == "__main__":
    pose()
    with Path(sys.argv[2]).open("w", encoding="utf-8") as output:
        for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
            output.write(json.dumps(ask(json.loads(line))) + "\n")
            output.flush()
