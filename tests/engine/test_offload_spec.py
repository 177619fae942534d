"""The offload spec's own logic: the link model, the bookkeeping of transfers, the block arithmetic."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_kvoffload.engine.connectors import HOST_SPEC, SPEC_MODULE, TIERING_SPEC, inside_dir


def load() -> ModuleType:
    """Load the module as vLLM's processes do: from its folder, not as a part of the package."""
    path = inside_dir() / f"{SPEC_MODULE}.py"
    found = importlib.util.spec_from_file_location(SPEC_MODULE, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


spec: Any = load()


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def test_the_names_that_the_launcher_uses_exist() -> None:
    assert hasattr(spec, HOST_SPEC)
    assert hasattr(spec, TIERING_SPEC)


def test_it_depends_on_nothing_of_the_package() -> None:
    assert "pytest_kvoffload" not in (inside_dir() / f"{SPEC_MODULE}.py").read_text()


def test_without_a_link_a_transfer_is_done_when_it_is_copied() -> None:
    assert spec.LinkModel().submit(10**9, 100.0, 100.25) == (100.25, 0.25)


def test_transfers_queue_on_the_link_and_latency_overlaps() -> None:
    link = spec.LinkModel(bandwidth_bytes_per_second=100.0, latency_seconds=1.0)
    assert link.submit(200, 10.0, 10.0) == (13.0, 3.0)
    assert link.submit(100, 10.0, 10.0) == (14.0, 2.0)  # begins at 12, occupies 1 s, arrives 1 s later
    assert link.submit(100, 50.0, 50.0) == (52.0, 2.0)  # the link was idle


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 5), st.floats(0, 0.1)), min_size=1, max_size=8),
    st.floats(1e3, 1e9),
    st.floats(0, 2),
)
def test_a_link_never_delivers_faster_than_its_bandwidth(
    jobs: list[tuple[int, float, float]], bandwidth: float, latency: float
) -> None:
    link, now, last = spec.LinkModel(bandwidth, latency), 0.0, 0.0
    total = 0
    for size, wait, copy in jobs:
        now += wait
        total += size
        done, seconds = link.submit(size, now, now + copy)
        assert done >= now + copy
        assert done >= now + latency
        assert done >= last
        assert done >= total / bandwidth - 1e-6
        assert seconds >= size / bandwidth
        last = done
        now += copy  # the next one is submitted after this one's copy


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"link_bandwidth_bytes_per_second": 0}, "link_bandwidth_bytes_per_second must be above 0, got 0"),
        ({"link_bandwidth_bytes_per_second": "1e9"}, "must be a number, got '1e9'"),
        ({"link_latency_seconds": -1}, "link_latency_seconds must be at least 0, got -1"),
        ({"link_latency_seconds": True}, "must be a number, got True"),
    ],
)
def test_a_bad_link_is_refused_by_name(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec.LinkModel.from_extra_config(extra)


def test_each_transfer_is_reported_once_and_only_when_due() -> None:
    clock = Clock()
    pending = spec.PendingTransfers(clock, clock.sleep)
    pending.add(1, 101.0, "one")
    pending.add(2, 100.0, "two")
    pending.add(3, 103.0, "three")
    assert pending.finished() == ["two"]
    assert pending.finished() == []
    pending.wait({1, 99})
    assert clock.now == 101.0
    assert pending.finished() == ["one"]
    pending.wait({1, 2})
    assert clock.now == 101.0
    pending.wait({3})
    assert pending.finished() == ["three"]
    pending.add(4, 200.0, "four")
    pending.clear()
    clock.now = 300.0
    assert pending.finished() == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(0, 7), st.integers(1, 30))
def test_blocks_fill_their_chunks_in_order(per_chunk: int, skip: int, count: int) -> None:
    skip %= per_chunk
    chunks = [100 + i for i in range(-(-(skip + count) // per_chunk))]
    chunk, slot = spec.sub_blocks(chunks, per_chunk, skip, count)
    positions = [(c - 100) * per_chunk + s for c, s in zip(chunk, slot, strict=True)]
    assert positions == list(range(skip, skip + count))
    assert set(chunk) == set(chunks)
