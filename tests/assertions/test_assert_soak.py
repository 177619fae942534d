from __future__ import annotations

import dataclasses

from factories import resources
from test_assert_common import outcome

from pytest_kvoffload.assertions import assert_no_growth, assert_nothing_left_behind
from pytest_kvoffload.records import ResourceSnapshot

MIB = 2**20


def test_growth_of_memory() -> None:
    assert_no_growth(resources([1000 * MIB + i for i in range(9)]))
    leaking = resources([1000 * MIB + 50 * MIB * i for i in range(9)])
    error = outcome(lambda: assert_no_growth(leaking))
    assert error.outcome == "violated"
    assert "host memory grew by 314,572,800 bytes in 480 s, allowed are 67,108,864" in str(error)
    assert_no_growth(leaking, memory_bytes=400 * MIB)


def test_one_peak_is_no_growth() -> None:
    assert_no_growth(resources([1000, 1000, 1000, 10**9, 1000, 1000, 1000, 10**9, 1000]))


def test_growth_of_shared_memory_names_the_files() -> None:
    snapshots = resources([1] * 6, shm=[0, 0, 0, 100, 100, 100])
    snapshots[-1] = dataclasses.replace(snapshots[-1], shm_files=("vllm_offload_x.mmap",))
    error = outcome(lambda: assert_no_growth(snapshots))
    assert "/dev/shm grew by 100 bytes" in str(error)
    assert "vllm_offload_x.mmap" in str(error)


def test_a_few_snapshots_show_nothing() -> None:
    error = outcome(lambda: assert_no_growth(resources([1] * 5)))
    assert error.outcome == "too-few-samples"
    assert "5 snapshots cannot show growth: at least 6" in str(error)


def test_what_is_left_behind_is_named() -> None:
    before = ResourceSnapshot(taken_at_seconds=0, memory_bytes=0, shm_bytes=5, shm_files=("mine",))
    assert_nothing_left_behind(before, before)
    after = dataclasses.replace(
        before, shm_files=("mine", "vllm_offload_1.mmap"), shm_bytes=105, processes=("17 1.00 VLLM::EngineCor",)
    )
    error = outcome(lambda: assert_nothing_left_behind(before, after))
    assert error.outcome == "violated"
    text = str(error)
    assert "left 1 processes and 1 files in /dev/shm behind" in text
    assert "process 17 1.00 VLLM::EngineCor; /dev/shm/vllm_offload_1.mmap" in text
    assert "100 bytes in /dev/shm" in text
