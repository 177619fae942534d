"""What is said of tiers outside the process: keys that nobody else makes, and answers that come late."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from factories import delta, measurement, phase, samples

from pytest_kvoffload.assertions import MeterAssertionError, assert_hit_rate_above, assert_offload_helps
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.metrics.verdict import judge
from pytest_kvoffload.records import DeltaSample, Measurement, measurement_from_json

RECORDED = Path(__file__).parent / "recorded" / "object-tier-0.32.0.json"
"""12 prompts of 2,064 tokens on vLLM 0.32.0's CPU backend, 16 MiB of host tier over a bucket of moto's S3 server; some
series and all but the last buckets were left out."""
FS = {"secondary_tiers": [{"type": "fs", "root_dir": "/tier"}]}


def recorded() -> Measurement:
    return measurement_from_json(RECORDED.read_bytes())


def test_hit_rate_up_and_ttft_flat_is_not_helping_and_the_lookup_delay_is_named() -> None:
    made = recorded()
    assert_hit_rate_above(made, 0.99, tier="external")
    control = dataclasses.replace(
        made, arm="control", phases=(as_phase(made, "cold"), as_phase(made, "restored", "cold"))
    )
    with pytest.raises(MeterAssertionError) as caught:
        assert_offload_helps(made, control, min_gain=0.25)
    text = str(caught.value)
    assert "the tier of 'obj' does not help: median failed (2 of 3 hold)" in text
    assert "holds: 0.992 of prompt tokens came through the connector (24,576 of 24,768)" in text
    assert "the lookup delay: a request waits 3.0275 s until the tier has answered and fetched" in text
    assert "(tier 1:obj: 1.4152 s a lookup), 99% of the median time to first token" in text


def as_phase(made: Measurement, name: str, source: str = "") -> Any:
    """The phase ``source`` under another name: the control asks the same prompts and computes them."""
    found = made.phase(source or name)
    return dataclasses.replace(
        found, name=name, samples=tuple(dataclasses.replace(s, phase=name) for s in found.samples)
    )


def test_the_metrics_alone_say_so_too() -> None:
    verdict = judge(read_meters(recorded().phase("restored").delta, vllm_version="0.32.0"))
    assert verdict.word == "hurting"
    assert verdict.reason.startswith("restoring 24576 tokens took 38.2 s, but computing them takes this server")
    assert "The lookup delay is the cause: for 99% of that time requests waited for lookups" in verdict.reason
    assert verdict.reason.endswith("; a lookup in tier 1:obj takes 1.42 s")


def nothing_came_back(
    mode: str,
    version: str,
    *,
    extra: Mapping[str, Any] = FS,
    env: Mapping[str, str] | None = None,
    algorithm: str | None = None,
    external: float = 0.0,
) -> str:
    """What ``assert_hit_rate_above`` says when a restored phase has no hits."""
    rows = []
    if algorithm is not None:
        labels = {"prefix_caching_hash_algo": algorithm, "engine": "0"}
        rows = [DeltaSample(name="vllm:cache_config_info", labels=labels, kind="gauge", before=1, after=1, increment=0)]
    meters = delta(prompt_tokens=165 * 12, external=external, store_bytes=1e6, rows=rows)
    made = measurement(phase("restored", [0.4] * 12, meters), mode=mode, extra=extra)
    made = dataclasses.replace(
        made, server=dataclasses.replace(made.server, vllm_version=version, environment=dict(env or {}))
    )
    with pytest.raises(MeterAssertionError) as caught:
        assert_hit_rate_above(made, 0.9, tier="external")
    return str(caught.value)


SEED = "hash seed: vLLM {} with {} begins its block hashes with PYTHONHASHSEED, or, as here, with random bytes"


@pytest.mark.parametrize("mode", ["restart", "shared"])
def test_a_random_hash_seed_is_named_where_it_is_the_cause(mode: str) -> None:
    assert SEED.format("0.27.1", "sha256") in nothing_came_back(mode, "0.27.1")
    assert "Set PYTHONHASHSEED, the same for all, in [engine] env" in nothing_came_back(mode, "0.28.0")
    assert SEED.format("0.32.0", "xxhash") in nothing_came_back(mode, "0.32.0", algorithm="xxhash")


def test_a_hash_seed_is_not_blamed_where_it_cannot_be() -> None:
    assert "hash seed" not in nothing_came_back("restart", "0.32.0")
    assert "hash seed" not in nothing_came_back("restart", "0.27.1", env={"PYTHONHASHSEED": "0"})
    assert "hash seed" not in nothing_came_back("restore", "0.27.1")
    assert "hash seed" not in nothing_came_back("restart", "0.27.1", extra={})
    assert "hash seed" not in nothing_came_back("restart", "0.27.1", external=165.0)
    assert "hash seed" not in nothing_came_back("restart", "unknown")


def test_a_changed_shape_is_asked_about() -> None:
    assert "depend on model, dtype, block size, chunk (blocks_per_chunk)" in nothing_came_back("shared", "0.32.0")


def test_a_directory_of_one_boot_does_not_outlive_it() -> None:
    text = nothing_came_back("restart", "0.32.0", extra={"shared_storage_path": "/scratch/example"})
    assert "made for one boot and is removed with it: name one in shared_storage_path" in text


def test_fast_lookups_are_not_blamed() -> None:
    made = recorded()
    slow = made.phase("restored")
    times = dataclasses.replace(slow, samples=samples([200.0] * 12))
    quick = dataclasses.replace(made, phases=(made.phase("cold"), times))
    with pytest.raises(MeterAssertionError) as caught:
        assert_offload_helps(quick)
    assert "the lookup delay" not in str(caught.value)
