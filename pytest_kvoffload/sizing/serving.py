"""The settings of a vLLM server that change what its cache looks like."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from pytest_kvoffload.errors import UsageError

DEFAULT_VLLM_VERSION = "0.32.0"
"""The version whose rules hold unless another is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What the server is started with. The defaults are those of ``vllm serve`` on an 80 GB NVIDIA GPU.

    Attributes:
        tp: tensor parallel size.
        pp: pipeline parallel size.
        kv_cache_dtype: as ``--kv-cache-dtype``.
        block_size: as ``--block-size`` in tokens; ``None`` leaves it to the attention backend.
        dtype: as ``--dtype``; ``None`` takes the configuration's.
        mamba_ssm_cache_dtype: as ``--mamba-ssm-cache-dtype``.
        max_num_batched_tokens: as the flag; 8192 is vLLM's default on this class of GPU.
        async_scheduling: one more batch in flight; on by default.
        prefix_caching: ``None`` is the default of the version and the kind of model.
        hybrid_manager: ``False`` for ``--disable-hybrid-kv-cache-manager``.
        default_block_size: block size of the platform without an opinion of the backend (16; the CPU backend has 128).
        vllm_version: the rules differ between versions.
    """

    tp: int = 1
    pp: int = 1
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    dtype: str | None = None
    mamba_ssm_cache_dtype: str = "auto"
    max_num_batched_tokens: int = 8192
    async_scheduling: bool = True
    prefix_caching: bool | None = None
    hybrid_manager: bool = True
    default_block_size: int = 16
    vllm_version: str = DEFAULT_VLLM_VERSION

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "max_num_batched_tokens", "default_block_size"):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name}: got {value}; expected 1 or more")
        if self.block_size is not None and self.block_size < 1:
            raise UsageError(f"block_size: got {self.block_size}; expected 1 or more")
        try:
            Version(self.vllm_version)
        except InvalidVersion:
            raise UsageError(f"vllm_version: got {self.vllm_version!r}; expected a version such as 0.32.0") from None

    @property
    def max_in_flight_tokens(self) -> int:
        """Tokens scheduled and not settled (``config/vllm.py`` 0.32.0:577-598)."""
        batches = self.pp + 1 if self.async_scheduling else self.pp
        return batches * self.max_num_batched_tokens

    def at_least(self, version: str) -> bool:
        """Whether the server's version is that one or a later one."""
        return Version(self.vllm_version) >= Version(version)
