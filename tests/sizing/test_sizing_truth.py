"""Sizes against vLLM 0.32.0's own numbers: every record, within 0 bytes.

``data/vllm_0_32_0.json.gz`` holds what vLLM itself computed (its specs, groups and page sizes, on a platform that poses
as an 80 GiB H100) for 47 model families at tensor parallel 1, 2 and 8 and several KV cache dtypes. Records with
``error`` are refusals of vLLM.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.errors import SizingError
from pytest_kvoffload.sizing import Serving, model_kv

DATA = Path(__file__).parent / "data" / "vllm_0_32_0.json.gz"
TINY: list[dict[str, Any]] = json.loads(gzip.decompress(DATA.with_name("vllm_0_32_0_tiny.json.gz").read_bytes()))
"""Small models of further architectures, asked in the same way (``catalog/ask_vllm.py``)."""
RECORDS: list[dict[str, Any]] = json.loads(gzip.decompress(DATA.read_bytes()))
FIELDS = (
    "block_size",
    "kv_bytes_per_token",
    "window_bytes_per_token",
    "state_bytes_per_sequence",
    "state_bytes_per_sequence_padded",
    "padded_bytes_per_block",
    "bytes_for_one_request_at_len",
    "max_in_flight_tokens",
    "max_model_len",
)
LAYER_FIELDS = (
    "block_size",
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "dtype",
    "sliding_window",
    "attention_chunk_size",
    "state_content_bytes",
    "shapes",
    "dtypes",
    "page_size_bytes",
)


def _name(record: dict[str, Any]) -> str:
    return f"{record['name']}-tp{record['tp']}-{record['kv_cache_dtype']}"


def _layers(entries: list[dict[str, Any]]) -> Counter[str]:
    """Layers by everything that describes them, counted: vLLM may list equal layers in several entries."""
    found: Counter[str] = Counter()
    for entry in entries:
        key = {name: entry[name] for name in LAYER_FIELDS if name in entry}
        if entry["type"] == "MLAAttentionSpec":
            key.pop("head_size_v", None)
        found[f"{entry['type']} {json.dumps(key, sort_keys=True)}"] += entry["layers"]
    return found


def _groups(entries: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((e["type"], e["layers"], e["block_size"], e["page_size_bytes"]) for e in entries)


def test_the_data_is_all_there() -> None:
    assert len(RECORDS) == 327
    assert sum("error" in record for record in RECORDS) == 52
    assert len({record["name"] for record in RECORDS}) == 47
    assert {record["tp"] for record in RECORDS} == {1, 2, 8}


@pytest.mark.parametrize("record", [r for r in RECORDS if "error" not in r], ids=_name)
def test_sizes_equal_vllm(record: dict[str, Any]) -> None:
    kv = model_kv(record["config"], tp=record["tp"], kv_cache_dtype=record["kv_cache_dtype"])
    mine = kv.as_dict()
    assert {name: mine[name] for name in FIELDS} == {name: record[name] for name in FIELDS}
    assert _layers(mine["per_layer"]) == _layers(record["per_layer"])
    assert _groups(mine["groups"]) == _groups(record["groups"])


def _pages(entries: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for entry in entries:
        reach = entry.get("sliding_window") or entry.get("attention_chunk_size")
        page = (entry["type"], entry["block_size"], entry["page_size_bytes"], reach)
        found[page] += entry["layers"]
    return found


@pytest.mark.parametrize("record", TINY, ids=_name)
def test_further_architectures_equal_vllm(record: dict[str, Any]) -> None:
    serving = Serving(
        tp=record["tp"],
        kv_cache_dtype=record["kv_cache_dtype"],
        max_num_batched_tokens=record["max_num_batched_tokens"],
    )
    mine = model_kv(record["config"], serving=serving).as_dict()
    for name in ("block_size", "padded_bytes_per_block", "bytes_for_one_request_at_len", "max_model_len"):
        assert mine[name] == record[name]
    assert _pages(mine["per_layer"]) == _pages(record["per_layer"])
    assert _groups(mine["groups"]) == _groups(record["groups"])


@pytest.mark.parametrize("record", [r for r in RECORDS if "error" in r], ids=_name)
def test_refusals_are_said_as_refusals(record: dict[str, Any]) -> None:
    with pytest.raises(SizingError, match="vLLM refuses") as caught:
        model_kv(record["config"], tp=record["tp"], kv_cache_dtype=record["kv_cache_dtype"])
    said = str(caught.value)
    theirs = record["error"]
    for words in ("must be divisible by tensor parallel size", "Sliding window for some but all layers", "with MLA"):
        if words in theirs:
            assert words in said
    if "No valid attention backend" in theirs:
        assert "No valid attention backend found" in said
