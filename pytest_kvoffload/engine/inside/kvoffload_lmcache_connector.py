"""Lets LMCache's in-process mode run on vLLM's CPU backend, for which LMCache has no connector.

Only this folder goes on PYTHONPATH, and vLLM imports this module in its engine core and every worker: it depends on
vLLM, LMCache and torch alone. Named by ``kv_connector`` (the class below) and ``kv_connector_module_path``.

Everything but the copy is LMCache's own: keys, chunks, lookup, storage backends, eviction, metrics. What it calls the
"GPU connector" moves the tokens of one chunk between vLLM's paged cache and a memory object; on a CPU LMCache has none
and gives up in silence ("No supported cpu connector found", degraded mode, every request recomputed).

Written for vLLM 0.27 to 0.32, whose CPU attention keeps ``[num_blocks, num_kv_heads, block_size, 2 * head_size]`` for a
layer (keys, then values in the last dimension), and LMCache 0.5, with memory objects ``[2, layers, tokens, hidden]``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

try:
    import lmcache.v1.gpu_connector as lmcache_gpu_connector
    from lmcache.utils import EngineType
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
    from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1
except ModuleNotFoundError as error:  # pragma: no cover - seen only where the copy alone is tested
    if error.name is None or error.name.partition(".")[0] not in ("lmcache", "vllm"):
        raise
    GPUConnectorInterface = LMCacheConnectorV1 = object


class CPUPagedConnector(GPUConnectorInterface):  # type: ignore[misc]
    """Copies chunks between vLLM's paged cache and LMCache's memory objects.

    Args:
        kv_shape: LMCache's ``(layers, 2, chunk tokens, kv heads, head size)``.
        use_mla: whether the model keeps one latent vector a token instead of keys and values.
        use_layerwise: whether LMCache wants to move layer by layer.

    Raises:
        ValueError: a layout that this copy does not know; nothing is stored rather than stored wrong.
    """

    def __init__(self, kv_shape: Sequence[int], *, use_mla: bool = False, use_layerwise: bool = False) -> None:
        if use_mla:
            raise ValueError(
                "LMCache in-process on vLLM's CPU backend: models with latent attention (MLA) are not supported"
            )
        if use_layerwise:
            raise ValueError(
                "LMCache in-process on vLLM's CPU backend: use_layerwise is not supported, set it to False"
            )
        if len(kv_shape) != 5 or kv_shape[1] != 2:
            raise ValueError(
                f"LMCache gives the KV shape {tuple(kv_shape)}; expected (layers, 2, chunk, heads, head size)"
            )
        self.num_layers, _, _, self.num_heads, self.head_size = (int(size) for size in kv_shape)
        self.kvcaches: list[torch.Tensor] | None = None

    def initialize_kvcaches_ptr(self, **kwargs: Any) -> None:
        """Remember vLLM's cache tensors, one a layer.

        Raises:
            ValueError: they are not laid out as this copy wants them.
        """
        caches = kwargs.get("kvcaches")
        if caches is not None:
            self.kvcaches = self.checked(caches.values() if isinstance(caches, Mapping) else caches)

    def checked(self, caches: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors, one a layer.

        Raises:
            ValueError: their number or shape is not what this copy knows.
        """
        layers = list(caches)
        if len(layers) != self.num_layers:
            raise ValueError(f"vLLM has {len(layers)} KV cache tensors, LMCache expects {self.num_layers} layers")
        for index, layer in enumerate(layers):
            heads, size = self.num_heads, 2 * self.head_size
            if layer.dim() != 4 or layer.shape[1] != heads or layer.shape[3] != size:
                raise ValueError(
                    f"the KV cache of layer {index} has the shape {tuple(layer.shape)}; expected (blocks, {heads} "
                    f"heads, block size, 2 * {self.head_size}): this vLLM keeps another layout on its CPU backend"
                )
        return layers

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        """Copy the tokens ``start`` to ``end`` from vLLM's cache into a memory object."""
        caches, slots = self._caches_and_slots(kwargs, start, end)
        target = self._tensor(memory_obj, end - start)
        held = slots >= 0
        for index, layer in enumerate(caches):
            block, offset = self._place(slots[held], layer)
            tokens = layer[block, :, offset, :]  # tokens, heads, keys and values
            pairs = tokens.view(-1, self.num_heads, 2, self.head_size).permute(2, 0, 1, 3)
            target[:, index, held] = pairs.reshape(2, -1, self.num_heads * self.head_size)

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        """Copy a memory object into vLLM's cache, except what vLLM holds itself and slots that it masks (-1)."""
        caches, slots = self._caches_and_slots(kwargs, start, end)
        source = self._tensor(memory_obj, end - start)
        wanted = slots >= 0
        wanted[: max(0, int(kwargs.get("vllm_cached_tokens", 0)) - start)] = False
        for index, layer in enumerate(caches):
            block, offset = self._place(slots[wanted], layer)
            pairs = source[:, index, wanted].view(2, -1, self.num_heads, self.head_size).permute(1, 2, 0, 3)
            layer[block, :, offset, :] = pairs.reshape(-1, self.num_heads, 2 * self.head_size)

    def batched_from_gpu(self, memory_objs: Any, starts: Sequence[int], ends: Sequence[int], **kwargs: Any) -> None:
        """Do :meth:`from_gpu` for several chunks."""
        for memory_obj, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory_obj, start, end, **kwargs)

    def batched_to_gpu(
        self,
        memory_objs: Any = None,
        starts: Sequence[int] | None = None,
        ends: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Do :meth:`to_gpu` for several chunks."""
        for memory_obj, start, end in zip(memory_objs or (), starts or (), ends or (), strict=True):
            self.to_gpu(memory_obj, start, end, **kwargs)

    def get_shape(self, num_tokens: int) -> torch.Size:
        """Return the shape of a memory object of so many tokens."""
        return torch.Size([2, self.num_layers, num_tokens, self.num_heads * self.head_size])

    def _caches_and_slots(
        self, kwargs: dict[str, Any], start: int, end: int
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        if self.kvcaches is None:
            self.initialize_kvcaches_ptr(**kwargs)
        if self.kvcaches is None:
            raise ValueError("LMCache asked for a copy before vLLM's caches were registered")
        slots = kwargs["slot_mapping"][start:end].to("cpu", torch.long)
        if len(slots) != end - start:
            raise ValueError(f"the slot mapping ends at token {start + len(slots)}, the chunk at {end}")
        return self.kvcaches, slots

    def _tensor(self, memory_obj: Any, num_tokens: int) -> torch.Tensor:
        tensor = memory_obj.tensor
        if tensor is None or tensor.shape != self.get_shape(num_tokens):
            found = None if tensor is None else tuple(tensor.shape)
            raise ValueError(f"LMCache gives a memory object {found}; expected {tuple(self.get_shape(num_tokens))}")
        assert isinstance(tensor, torch.Tensor)
        return tensor

    @staticmethod
    def _place(slots: torch.Tensor, layer: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        block_size = layer.shape[2]
        return torch.div(slots, block_size, rounding_mode="floor"), slots % block_size


class KVOffloadLMCacheConnector(LMCacheConnectorV1):  # type: ignore[misc]
    """vLLM's LMCacheConnectorV1 with a copy for the CPU backend."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with _cpu_connector() as made:
            super().__init__(*args, **kwargs)
        self._copies: list[CPUPagedConnector] = made

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Refuse an unknown layout while the server boots, instead of in the first request."""
        for copy in self._copies:
            copy.initialize_kvcaches_ptr(kvcaches=kv_caches)
        super().register_kv_caches(kv_caches)


@contextlib.contextmanager
def _cpu_connector() -> Iterator[list[CPUPagedConnector]]:
    """Answer LMCache's question for a connector with ours meanwhile; yields those that were made."""
    made: list[CPUPagedConnector] = []
    original = lmcache_gpu_connector.CreateGPUConnector

    def create(config: Any, metadata: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
        if engine != EngineType.VLLM:
            return original(config, metadata, engine, *args, **kwargs)
        copy = CPUPagedConnector(metadata.kv_shape, use_mla=metadata.use_mla, use_layerwise=bool(config.use_layerwise))
        made.append(copy)
        return copy

    lmcache_gpu_connector.CreateGPUConnector = create
    try:
        yield made
    finally:
        lmcache_gpu_connector.CreateGPUConnector = original
