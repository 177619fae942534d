"""Why LMCache found nothing: its hash seed, a restart that took the tier with it, or nothing stored at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import factories
import pytest

from pytest_kvoffload.assertions import assert_hit_rate_above
from pytest_kvoffload.assertions.lmcache import lmcache_causes
from pytest_kvoffload.records import DeltaSample, Measurement


def measured(
    connector: str,
    *,
    mode: str = "restore",
    environment: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    counters: Mapping[str, float] | None = None,
) -> Measurement:
    rows = [
        DeltaSample(name=name, labels={}, kind="counter", before=0.0, after=value, increment=value)
        for name, value in (counters or {}).items()
    ]
    phases = [
        factories.phase(
            name, [0.1] * 4, factories.delta(prompt_tokens=4 * factories.PROMPT, rows=rows, connector=False)
        )
        for name in ("cold", "restored")
    ]
    made = factories.measurement(*phases, arm="lmcache", kind="raw", mode=mode)
    config = {"kv_connector": connector, "kv_connector_extra_config": dict(extra or {})}
    server = dataclasses.replace(
        made.server, kv_transfer_config=config, command=("python",), environment=dict(environment or {})
    )
    return dataclasses.replace(made, server=server)


def text_of(measurement: Measurement) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_hit_rate_above(measurement, 0.5, tier="external", phase="restored")
    return " ".join(str(caught.value).split())


@pytest.mark.parametrize("seed", [{}, {"PYTHONHASHSEED": "random"}, {"PYTHONHASHSEED": ""}])
def test_an_unfixed_seed_is_named(seed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    text = text_of(measured("KVOffloadLMCacheConnector", environment=seed))
    assert "PYTHONHASHSEED is not fixed" in text
    assert "set PYTHONHASHSEED=0" in text


def test_a_fixed_seed_or_a_real_hash_is_not_blamed() -> None:
    seeded = measured("LMCacheConnectorV1", environment={"PYTHONHASHSEED": "0"})
    assert lmcache_causes(seeded, environ={}) == ()
    hashed = measured("LMCacheConnectorV1", environment={"LMCACHE_PRE_CACHING_HASH_ALGORITHM": "sha256_cbor"})
    assert lmcache_causes(hashed, environ={}) == ()
    inherited = measured("LMCacheConnectorV1")
    assert lmcache_causes(inherited, environ={"PYTHONHASHSEED": "3"}) == ()
    attached = dataclasses.replace(inherited, server=dataclasses.replace(inherited.server, command=()))
    assert lmcache_causes(attached, environ={}) == ()


def test_a_restart_takes_memory_and_disk_of_the_process_but_no_remote() -> None:
    seed = {"PYTHONHASHSEED": "0"}
    assert "only a remote store or MP mode outlives a restart" in text_of(
        measured("KVOffloadLMCacheConnector", mode="restart", environment=seed)
    )
    remote = {**seed, "LMCACHE_REMOTE_URL": "lm://127.0.0.1:1"}
    assert lmcache_causes(measured("LMCacheConnectorV1", mode="restart", environment=remote), environ={}) == ()


def test_an_autostarted_server_ends_with_vllm() -> None:
    extra = {"lmcache.mp.autostart": True}
    assert "started by vLLM (autostart)" in text_of(measured("LMCacheMPConnector", mode="restart", extra=extra))
    assert lmcache_causes(measured("LMCacheMPConnector", mode="restart"), environ={}) == ()


@pytest.mark.parametrize(
    ("counters", "text"),
    [
        ({"lmcache_mp_l1_write_chunks_total": 8.0}, "LMCache stored (lmcache_mp_l1_write_chunks_total: 16)"),
        ({"lmcache_mp_l1_write_chunks_total": 0.0}, "LMCache stored nothing"),
        ({}, "lmcache_mp_l1_write_chunks_total is not among the metrics"),
    ],
)
def test_lmcaches_own_counters_say_whether_anything_was_stored(counters: dict[str, float], text: str) -> None:
    assert text in text_of(measured("LMCacheMPConnector", counters=counters))


def test_an_l1_that_was_full_between_two_evictions_is_named() -> None:
    refused = {"lmcache_mp_l1_allocation_failure_chunks_total": 12.0, "lmcache_mp_l1_write_chunks_total": 8.0}
    text = text_of(measured("LMCacheMPConnector", counters=refused))
    assert "LMCache's L1 was full: 24 chunks found no room and were stored nowhere, L2 included" in text
    assert "and 0 could not be read back from L2" in text
    assert "raise l1_size_gb" in text
    assert "--eviction-trigger-watermark" in text
    # A child of a MultiConnector, and a server that somebody else booted, have the same counter.
    multi = measured("MultiConnector", counters=refused)
    attached = dataclasses.replace(multi, server=dataclasses.replace(multi.server, command=()))
    assert any("L1 was full" in cause for cause in lmcache_causes(attached, environ={}))


@pytest.mark.parametrize(("reason", "blamed"), [("l1_oom", True), ("not_found", False)])
def test_a_load_from_l2_that_found_no_room_in_l1_is_named(reason: str, blamed: bool) -> None:
    name = "lmcache_mp_l2_prefetch_failure_chunks_total"
    row = DeltaSample(name=name, labels={"reason": reason}, kind="counter", before=0.0, after=3.0, increment=3.0)
    made = measured("LMCacheMPConnector")
    delta = dataclasses.replace(made.phases[1].delta, samples=(*made.phases[1].delta.samples, row))
    phases = (made.phases[0], dataclasses.replace(made.phases[1], delta=delta))
    causes = lmcache_causes(dataclasses.replace(made, phases=phases), environ={})
    assert any("and 3 could not be read back from L2" in cause for cause in causes) == blamed


def test_an_l1_with_room_is_not_blamed() -> None:
    counters = {"lmcache_mp_l1_allocation_failure_chunks_total": 0.0, "lmcache_mp_l1_write_chunks_total": 8.0}
    assert lmcache_causes(measured("LMCacheMPConnector", counters=counters), environ={}) == ()
