"""Measurements of the two kinds of server, taken once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from fakes.gate_blocks import blocks_of, take

from pytest_kvoffload.gate.samples import Block
from pytest_kvoffload.records import Measurement

MakeBlocks = Callable[..., list[Block]]


@pytest.fixture(scope="session")
def offloading(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    return take(tmp_path_factory.mktemp("native"), "native")


@pytest.fixture(scope="session")
def recomputing(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    return take(tmp_path_factory.mktemp("control"), "recompute")


@pytest.fixture
def make_blocks(offloading: Measurement) -> MakeBlocks:
    def make(seconds: Sequence[float], *, name: str, of: Measurement = offloading) -> list[Block]:
        return blocks_of(of, seconds, name=name)

    return make
