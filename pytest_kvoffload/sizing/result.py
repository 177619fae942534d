"""The result of sizing a model, and its form as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.sizing.serving import Serving
from pytest_kvoffload.sizing.spec import CHUNK, FULL, MLA, STATE, UNIFORM, WINDOW, WINDOW_MLA, Group, LayerSpec

SCHEMA_VERSION = 1
"""Of :meth:`ModelKV.as_dict` and the JSON of ``kvoffload size``; grows when a field changes its meaning."""

LENGTHS = (1, 1024, 8192, 32768, 131072)
"""Lengths at which the bytes of one request are listed, up to the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKV:
    """The cache of one model on one server setting. Bytes are per rank, lengths tokens.

    ``layers`` are in vLLM's order; ``groups`` share block tables and draw from one pool, so that each block id costs
    ``padded_bytes_per_block`` whichever group takes it.
    """

    architecture: str
    source: str
    rule_source: str
    serving: Serving
    model_dtype: str
    cache_dtype: str
    block_size: int
    max_model_len: int
    layers: tuple[LayerSpec, ...]
    groups: tuple[Group, ...]
    padded_bytes_per_block: int
    rank_bytes_per_block: tuple[int, ...]
    """Bytes of one block id on each pipeline stage."""
    align: bool
    latent_only: bool
    """Only latents: every tensor-parallel rank holds the same bytes."""
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks of one replica."""
        return self.serving.tp * self.serving.pp

    @property
    def kv_bytes_per_token(self) -> int | float:
        """Bytes that each token adds in layers that keep every token, without padding of pages."""
        return _per_token(spec for spec in self.layers if spec.kind in (FULL, MLA))

    @property
    def window_bytes_per_token(self) -> int | float:
        """Bytes that each token adds, while it is within reach, in window and chunk layers."""
        return _per_token(spec for spec in self.layers if spec.kind in (WINDOW, WINDOW_MLA, CHUNK))

    @property
    def state_bytes_per_sequence(self) -> int:
        """Bytes of one state of one sequence over all state layers, without padding."""
        return sum(spec.unpadded_page_bytes for spec in self.layers if spec.kind == STATE)

    @property
    def state_bytes_per_sequence_padded(self) -> int:
        """Bytes of one state of one sequence as allocated."""
        return sum(spec.page_bytes for spec in self.layers if spec.kind == STATE)

    def blocks_for_one_request(self, tokens: int) -> int:
        """Return the block ids that one request of ``tokens`` tokens takes at most, over all groups.

        Raises:
            UsageError: ``tokens`` is less than 1.
        """
        if tokens < 1:
            raise UsageError(f"context: got {tokens}; expected 1 token or more")
        return sum(
            group.blocks_for(
                tokens,
                in_flight_tokens=self.serving.max_in_flight_tokens,
                encoder_tokens=self.serving.max_num_batched_tokens,
                align=self.align,
            )
            for group in self.groups
        )

    def bytes_for_one_request(self, tokens: int) -> int:
        """Return the bytes of the shared pool that one request of ``tokens`` tokens takes at most, on one rank."""
        return self.blocks_for_one_request(tokens) * self.padded_bytes_per_block

    def as_dict(self, context: int | None = None) -> dict[str, Any]:
        """Return the numbers as plain data; names as in vLLM where it has one."""
        lengths = sorted({length for length in LENGTHS if length < self.max_model_len} | {self.max_model_len})
        data: dict[str, Any] = {
            "architecture": self.architecture,
            "source": self.source,
            "rule": self.rule_source,
            "vllm_version": self.serving.vllm_version,
            "tp": self.serving.tp,
            "pp": self.serving.pp,
            "model_dtype": self.model_dtype,
            "kv_cache_dtype": self.serving.kv_cache_dtype,
            "resolved_kv_cache_dtype": self.cache_dtype,
            "block_size": self.block_size,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "window_bytes_per_token": self.window_bytes_per_token,
            "state_bytes_per_sequence": self.state_bytes_per_sequence,
            "state_bytes_per_sequence_padded": self.state_bytes_per_sequence_padded,
            "padded_bytes_per_block": self.padded_bytes_per_block,
            "rank_bytes_per_block": list(self.rank_bytes_per_block),
            "max_model_len": self.max_model_len,
            "max_in_flight_tokens": self.serving.max_in_flight_tokens,
            "bytes_for_one_request_at_len": {str(length): self.bytes_for_one_request(length) for length in lengths},
            "per_layer": _layers_as_dicts(self.layers),
            "groups": [_group_as_dict(group) for group in self.groups],
            "notes": list(self.notes),
        }
        if context is not None:
            data["context"] = context
            data["bytes_for_one_request"] = self.bytes_for_one_request(context)
        return data


def _per_token(specs: Iterable[LayerSpec]) -> int | float:
    """Return the bytes of one token, whole unless a latent covers several tokens."""
    total = sum((Fraction(spec.unpadded_page_bytes, spec.block_size) for spec in specs), Fraction(0))
    return int(total) if total.denominator == 1 else float(total)


def _layers_as_dicts(layers: tuple[LayerSpec, ...]) -> list[dict[str, Any]]:
    counts: dict[LayerSpec, int] = {}
    for spec in layers:
        counts[spec] = counts.get(spec, 0) + 1
    return [_spec_as_dict(spec, count) for spec, count in counts.items()]


def _spec_as_dict(spec: LayerSpec, count: int) -> dict[str, Any]:
    data: dict[str, Any] = {"type": spec.kind, "layers": count, "block_size": spec.block_size}
    if spec.kind == STATE:
        data["shapes"] = [list(shape) for shape in spec.state_shapes]
        data["dtypes"] = list(spec.state_dtypes)
        data["mamba_type"] = spec.state_type
        data["unpadded_page_size_bytes"] = spec.unpadded_page_bytes
    else:
        data["num_kv_heads"] = spec.kv_heads
        data["head_size"] = spec.head_size
        data["dtype"] = spec.dtype
        if spec.kind != MLA:
            data["head_size_v"] = spec.head_size_v
    optional = {
        "state_content_bytes": spec.content_bytes,
        "num_head_slots": spec.head_slots,
        "sliding_window": spec.window,
        "attention_chunk_size": spec.chunk,
        "page_size_padded": spec.padded_page_bytes,
        "cache_role": spec.role or None,
    }
    data.update({key: value for key, value in optional.items() if value is not None})
    data["page_size_bytes"] = spec.page_bytes
    return data


def _group_as_dict(group: Group) -> dict[str, Any]:
    data: dict[str, Any] = {
        "type": group.kind,
        "layers": len(group.layers),
        "block_size": group.block_size,
        "page_size_bytes": group.page_bytes,
    }
    if group.kind != UNIFORM:
        first = group.specs[0]
        if first.window is not None:
            data["sliding_window"] = first.window
        if first.chunk is not None:
            data["attention_chunk_size"] = first.chunk
    return data
