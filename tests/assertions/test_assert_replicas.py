"""Replicas: meters, rates and assertions of each, and the reason when a revisit lands on another one."""

from __future__ import annotations

import dataclasses

import pytest
from factories import PREFIX, PROMPT, delta, good, measurement, phase
from test_assert_common import outcome

from pytest_kvoffload.assertions import (
    assert_hit_rate_above,
    assert_no_stores_without_loads,
    assert_tier_exercised,
)
from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.metrics.hit_rate import HitRate
from pytest_kvoffload.metrics.meters import read_meters
from pytest_kvoffload.metrics.replicas import find_replica, hit_rates, of_replica, replicas
from pytest_kvoffload.records import Delta, Measurement

ONE = "http://a:8000/metrics"


def together(*parts: tuple[str, str, Delta]) -> Delta:
    """The deltas of several engines as one scrape of their endpoints shows them."""
    samples = tuple(
        dataclasses.replace(sample, labels={**sample.labels, "engine": engine, "endpoint": endpoint})
        for endpoint, engine, part in parts
        for sample in part.samples
    )
    return dataclasses.replace(parts[0][2], samples=samples)


def split(first: float, second: float, *, cold: tuple[float, float] = (3e6, 3e6)) -> Measurement:
    """Two data parallel ranks, each with six prompts and these external hit tokens in the restored phase."""
    asked = PROMPT * 6
    stores = together(*((ONE, str(i), delta(prompt_tokens=asked, store_bytes=cold[i])) for i in (0, 1)))
    meters = together(
        *((ONE, str(i), delta(prompt_tokens=asked, external=hits)) for i, hits in enumerate((first, second)))
    )
    return measurement(phase("cold", [0.4] * 12, stores), phase("restored", [0.4] * 12, meters))


def test_ranks_of_one_server_are_named_by_rank_and_servers_by_place() -> None:
    part = delta(prompt_tokens=1)
    assert [r.name for r in replicas(together((ONE, "0", part), (ONE, "1", part), (ONE, "10", part)))] == [
        "0",
        "1",
        "10",
    ]
    two = together((ONE, "0", part), ("http://b:8001/metrics", "0", part))
    assert [r.name for r in replicas(two)] == ["a:8000", "b:8001"]
    four = together((ONE, "0", part), (ONE, "1", part), ("http://b:8001/metrics", "0", part))
    assert [r.name for r in replicas(four)] == ["a:8000/0", "a:8000/1", "b:8001"]


def test_the_parts_add_up_to_the_whole() -> None:
    whole = split(300.0, 120.0).phase("restored").delta
    parts = [read_meters(of_replica(whole, r), vllm_version="0.32.0") for r in replicas(whole)]
    assert [p.hit_tokens["external"].value for p in parts] == [300.0, 120.0]
    total = read_meters(whole, vllm_version="0.32.0")
    assert sum(p.prompt_tokens.value or 0 for p in parts) == total.prompt_tokens.value
    rates = hit_rates(whole, vllm_version="0.32.0", tier="external")
    assert {name: rate.hit_tokens for name, rate in rates.items() if isinstance(rate, HitRate)} == {
        "0": 300.0,
        "1": 120.0,
    }


def test_resets_and_restarts_belong_to_their_replica() -> None:
    part = delta(prompt_tokens=1)
    both = dataclasses.replace(
        together((ONE, "0", part), (ONE, "1", part), ("http://b:1/metrics", "0", part)),
        resets=(f'vllm:x{{endpoint="{ONE}",engine="1"}}',),
        restarts=("http://b:1/metrics",),
    )
    one, two, other = (of_replica(both, replica) for replica in replicas(both))
    assert (one.resets, len(two.resets), other.resets) == ((), 1, ())
    assert (one.restarts, other.restarts) == ((), ("http://b:1/metrics",))


def test_a_rate_is_asked_of_one_replica_or_of_each() -> None:
    made = split(6 * PREFIX, 0.0)
    assert_hit_rate_above(made, 0.4, tier="external")
    assert_hit_rate_above(made, 0.9, tier="external", replica="0")
    error = outcome(lambda: assert_hit_rate_above(made, 0.9, tier="external", replica="each"))
    assert "in phase 'restored' of 'native' on replica 1 is 0.000" in str(error)
    assert error.evidence["replica"] == "1"
    assert error.evidence["replica 0"].startswith("0.970")
    assert_tier_exercised(made)
    assert_tier_exercised(made, replica="0")
    missed = outcome(lambda: assert_tier_exercised(made, replica="each"))
    assert missed.outcome == "tier-not-exercised"
    assert "on replica 1: 0 of 990 prompt tokens" in str(missed)


def test_a_replica_that_served_nothing_is_no_good_replica() -> None:
    idle = together((ONE, "0", delta(prompt_tokens=990, external=960)), (ONE, "1", delta(prompt_tokens=0, external=0)))
    made = measurement(phase("restored", [0.1] * 6, idle))
    assert_hit_rate_above(made, 0.9, tier="external")
    error = outcome(lambda: assert_hit_rate_above(made, 0.9, tier="external", replica="each"))
    assert error.outcome == "metric-absent"
    assert "no prompt was processed" in str(error)


def test_an_unknown_replica_is_a_mistake_of_the_test() -> None:
    with pytest.raises(UsageError, match=r"unknown replica '2'; there are 0, 1 \('each' stands for every one\)"):
        assert_hit_rate_above(split(1, 1), 0.5, replica="2")
    with pytest.raises(UsageError, match="there are 0"):
        find_replica(split(1, 1).phase("cold").delta, "zero")


def test_hits_on_one_replica_only_are_named_with_the_cause() -> None:
    made = split(6 * PREFIX, 0.0)
    text = str(outcome(lambda: assert_hit_rate_above(made, 0.9, tier="external")))
    assert "hits on replica 0 only (replica 0: 960 of 990 prompt tokens from its tier, 3,000,000 bytes stored; " in text
    assert "each of the 2 replicas has a tier of its own, so a prefix that one stored is recomputed when" in text
    assert "vllm-router --policy cache_aware or consistent_hash" in text


def test_no_hits_on_any_replica_although_both_stored() -> None:
    text = str(outcome(lambda: assert_tier_exercised(split(0.0, 0.0))))
    assert "no replica hits (replica 0: 0 of 990 prompt tokens" in text
    assert "stores happened and nothing was found again" not in text


def test_a_shared_tier_gets_another_cause() -> None:
    made = split(6 * PREFIX, 0.0)
    shared = {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {"secondary_tiers": [{"type": "fs", "root_dir": "/tier"}]},
    }
    made = dataclasses.replace(made, server=dataclasses.replace(made.server, kv_transfer_config=shared))
    text = str(outcome(lambda: assert_hit_rate_above(made, 0.9, tier="external")))
    assert "if the tier is one for all replicas, do their keys agree (PYTHONHASHSEED" in text
    assert "tier of its own" not in text


@pytest.mark.parametrize("made", [split(960.0, 940.0), good()], ids=["even replicas", "one replica"])
def test_where_replicas_hit_alike_nothing_is_said_of_them(made: Measurement) -> None:
    text = str(outcome(lambda: assert_hit_rate_above(made, 0.99, tier="external")))
    assert "replicas has a tier" not in text
    assert "hits on replica" not in text


def test_assertions_without_a_replica_are_over_all() -> None:
    loads = together((ONE, "0", delta(prompt_tokens=990, load_bytes=5.0)), (ONE, "1", delta(prompt_tokens=990)))
    made = measurement(phase("cold", [0.4] * 12, split(0, 0).phase("cold").delta), phase("restored", [0.4] * 12, loads))
    assert_no_stores_without_loads(made)
