"""The files that ``kvoffload init`` writes, as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHECKOUT = "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2"
SETUP_PYTHON = "actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0"
UPLOAD = "actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02 # v4.6.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Everything that the files depend on."""

    engine: str
    connector: Mapping[str, Any]
    """The table of the connector under test."""
    arm: str
    """Its name."""
    python: str | None = None
    model: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    connector_env: Mapping[str, str] = field(default_factory=dict)
    origin: str | None = None
    """The file that a launch command was read from."""


def config_text(answers: Answers) -> str:
    """Return ``kvoffload.toml``."""
    engine: dict[str, Any] = {"kind": answers.engine}
    if answers.python:
        engine["python"] = answers.python
    if answers.engine == "cpu":
        engine["num_gpu_blocks"] = 80
    if answers.args:
        engine["args"] = list(answers.args)
    if answers.env:
        engine["env"] = dict(answers.env)
    connector = dict(answers.connector)
    if answers.connector_env:
        connector["env"] = dict(answers.connector_env)
    origin = f" The arm {answers.arm!r} is what {answers.origin!r} launches." if answers.origin else ""
    parts = [
        f"# What the KV-offload tests run against.{' ' if origin else ''}{origin.strip()}",
        "# kind: 'cpu' is real vLLM without a GPU, in a managed environment; 'local' uses a vllm of yours.\n"
        + _toml({"engine": engine}),
    ]
    if answers.model:
        parts.append(_toml({"model": {"path": answers.model}}))
    parts += [
        "# No connector: what a revisit costs without a tier.\n"
        + _toml({"connectors": {"control": {"kind": "recompute"}}}),
        "# The tier under test. 'kvoffload size' computes the size that a workload needs.\n"
        + _toml({"connectors": {answers.arm: connector}}),
        "# Shared prefixes that together exceed the device's cache, so that a revisit must come from the tier.\n"
        + _toml({"workload": {"prefix_tokens": 2048, "suffix_tokens": 16, "output_tokens": 8}}),
    ]
    return "\n".join(parts)


def test_text(answers: Answers) -> str:
    """Return the test file."""
    return f'''"""What the KV-offload tier must do for us. Change the numbers to yours."""

import pytest

from pytest_kvoffload import (
    assert_hit_rate_above,
    assert_no_failed_requests,
    assert_offload_helps,
    assert_same_output,
    assert_tier_exercised,
)

pytestmark = pytest.mark.kvoffload("{answers.arm}", control="control")


def test_the_tier_serves_the_revisit(kvoffload_measurement):
    assert_no_failed_requests(kvoffload_measurement)
    assert_tier_exercised(kvoffload_measurement)
    assert_hit_rate_above(kvoffload_measurement, 0.6, tier="external")


def test_a_restored_prefix_gives_the_same_tokens(kvoffload_measurement):
    assert_same_output(kvoffload_measurement)


def test_a_revisit_is_faster_than_recomputing(kvoffload_measurement, kvoffload_control):
    assert_offload_helps(kvoffload_measurement, control=kvoffload_control)
'''


def workflow_text(answers: Answers) -> str:
    """Return the GitHub workflow."""
    runner = "ubuntu-latest" if answers.engine == "cpu" else "[self-hosted, gpu]"
    return f"""name: kvoffload

on:
  pull_request:
  push:
    branches: [main]

permissions:
  contents: read

jobs:
  offload:
    runs-on: {runner}
    timeout-minutes: 60
    steps:
      - uses: {CHECKOUT}
        with:
          persist-credentials: false
      - uses: {SETUP_PYTHON}
        with:
          python-version: "3.12"
      - run: python -m pip install "pytest-kvoffload[gate,report]"
      - run: kvoffload lint .
      - run: pytest tests/test_offload.py --kvoffload-html kvoffload-report.html
      - uses: {UPLOAD}
        if: always()
        with:
          name: kvoffload-report
          path: kvoffload-report.html
          if-no-files-found: ignore
"""


def _toml(data: Mapping[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(data)


def without_null(value: Any) -> bool:
    """Whether TOML can hold the value: it has no null."""
    if isinstance(value, Mapping):
        return all(without_null(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(without_null(item) for item in value)
    return value is not None
