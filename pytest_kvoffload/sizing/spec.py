"""What one layer keeps in the cache, on one rank: the page arithmetic of vLLM's KV-cache specs.

Sources: ``vllm/v1/kv_cache_interface.py`` (0.32.0: 545-560 page, 602 full, 813-885 windows, 1051-1090 state, 1160
cross). A page is one block of one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

FULL = "FullAttentionSpec"
WINDOW = "SlidingWindowSpec"
CHUNK = "ChunkedLocalAttentionSpec"
MLA = "MLAAttentionSpec"
CROSS = "CrossAttentionSpec"
STATE = "MambaSpec"
WINDOW_MLA = "SlidingWindowMLASpec"
UNIFORM = "UniformTypeKVCacheSpecs"

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
}


def ceil_div(value: int, divisor: int) -> int:
    """Return ``value / divisor`` rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple that is at least ``value``."""
    return ceil_div(value, multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer's cache on one rank. Sizes are bytes, lengths tokens.

    ``kind`` is the name of vLLM's class. ``content_bytes`` is the size of one token of one head (K and V together)
    where a backend packs it, ``None`` for the product of head sizes and dtype.
    """

    kind: str
    block_size: int
    kv_heads: int = 1
    head_size: int = 0
    head_size_v: int = 0
    dtype: str = "bfloat16"
    content_bytes: int | None = None
    head_slots: int | None = None
    window: int | None = None
    chunk: int | None = None
    padded_page_bytes: int | None = None
    state_shapes: tuple[tuple[int, ...], ...] = ()
    state_dtypes: tuple[str, ...] = ()
    state_type: str = ""
    checkpoint_blocks: int = 0
    tokens_per_state: int = 1
    """Tokens that one stored latent covers (compressed latents of DeepSeek-V4)."""
    alignment: int = 1
    """The page is rounded up to a multiple of this many bytes."""
    role: str = ""
    """``INDEXER`` for the index keys of sparse attention, ``SPARSE`` for latents, else empty."""
    stride_alignment: int = 1
    variant: str = ""
    """Distinguishes specs of equal size that vLLM does not merge (cache dtype string, leader of an index group)."""

    @property
    def unpadded_page_bytes(self) -> int:
        """Bytes of one block of this layer without padding."""
        if self.kind == STATE:
            return sum(prod(s) * DTYPE_BYTES[d] for s, d in zip(self.state_shapes, self.state_dtypes, strict=True))
        content = self.content_bytes
        if content is None:
            content = (self.head_size + self.head_size_v) * DTYPE_BYTES[self.dtype]
        return self.block_size // self.tokens_per_state * (self.head_slots or self.kv_heads) * content

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of this layer as allocated."""
        if self.padded_page_bytes is not None:
            return self.padded_page_bytes
        return round_up(self.unpadded_page_bytes, self.alignment)

    @property
    def is_attention(self) -> bool:
        """Whether it keeps keys and values (or latents), not a state."""
        return self.kind != STATE

    def with_block_size(self, block_size: int) -> LayerSpec:
        """Return the same layer with another block size."""
        return replace(self, block_size=block_size)

    def blocks_for(self, tokens: int, *, in_flight_tokens: int, encoder_tokens: int, align: bool) -> int:
        """Return the blocks that one request of ``tokens`` tokens takes at most (``max_memory_usage_bytes`` / page).

        Args:
            tokens: the request's length (vLLM's ``max_model_len`` in this sum).
            in_flight_tokens: tokens scheduled and not settled (``VllmConfig.max_in_flight_tokens``).
            encoder_tokens: ``max_num_encoder_input_tokens`` of the scheduler, for cross attention.
            align: whether states are kept at block boundaries for the prefix cache (mode ``align``).
        """
        if self.kind == STATE:
            return 2 + self.checkpoint_blocks if align else 1
        if self.kind in (WINDOW, WINDOW_MLA):
            assert self.window is not None
            return ceil_div(min(self.window - 1 + in_flight_tokens, tokens), self.block_size) + 1
        if self.kind == CHUNK:
            assert self.chunk is not None
            return ceil_div(min(self.chunk + in_flight_tokens, tokens), self.block_size)
        if self.kind == CROSS:
            return ceil_div(encoder_tokens, self.block_size)
        return ceil_div(tokens, self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share one block table (``KVCacheGroupSpec``). ``layers`` are positions in the model's list."""

    kind: str
    block_size: int
    layers: tuple[int, ...]
    specs: tuple[LayerSpec, ...]

    @property
    def page_bytes(self) -> int:
        """Page of the group's spec: the sum over its layers for a uniform-type group, else one layer's."""
        if self.kind == UNIFORM:
            return sum(spec.page_bytes for spec in self.specs)
        return self.specs[0].page_bytes

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block id of this group costs: every layer's page at its stride."""
        return sum(round_up(spec.page_bytes, spec.stride_alignment) for spec in self.specs)

    def blocks_for(self, tokens: int, *, in_flight_tokens: int, encoder_tokens: int, align: bool) -> int:
        """Return the blocks that one request takes of this group's table; arguments as for a layer."""
        return max(
            spec.blocks_for(tokens, in_flight_tokens=in_flight_tokens, encoder_tokens=encoder_tokens, align=align)
            for spec in self.specs
        )


def same_type(specs: Sequence[LayerSpec]) -> bool:
    """Whether vLLM puts these layers into one group although their pages differ (``is_uniform_type``)."""
    first = specs[0]
    if len({spec.block_size for spec in specs}) != 1:
        return False
    if first.kind in (FULL, MLA):
        return all(spec.kind in (FULL, MLA) for spec in specs)
    if any(spec.kind != first.kind for spec in specs):
        return False
    if first.kind in (WINDOW, WINDOW_MLA):
        return len({(spec.window, spec.role) for spec in specs}) == 1
    if first.kind == CHUNK:
        return len({spec.chunk for spec in specs}) == 1
    if first.kind == STATE:
        return len({(spec.page_bytes, spec.checkpoint_blocks) for spec in specs}) == 1
    return True
