"""Meters and hit rates over recorded pages of real servers, and over what a server may lack."""

from __future__ import annotations

import pytest
from expositions import recorded, snapshot

from pytest_kvoffload.errors import UsageError
from pytest_kvoffload.metrics.delta import delta
from pytest_kvoffload.metrics.hit_rate import HitRate, MetricAbsent, hit_rate
from pytest_kvoffload.metrics.meters import SCHEDULER, Meters, read_meters

# 8 prompts of 2000 tokens, sent cold, then again after a reset of the device cache, then the last one twice more.
PROMPT_TOKENS = 16_000
RESTORED_TOKENS = 8 * 1920
"""Whole blocks of 128 tokens."""


def window(server: str, before: str, after: str, **options: int) -> Meters:
    found = delta(recorded(server, before), recorded(server, after, at_seconds=10))
    return read_meters(found, vllm_version=server.split("-")[0], prompt_tokens=options.get("prompt_tokens"))


def of_text(before: str, after: str, version: str | None = "0.32.0", **options: int) -> Meters:
    found = delta(snapshot(before), snapshot(after, at_seconds=10))
    return read_meters(found, vllm_version=version, prompt_tokens=options.get("prompt_tokens"))


def rate(meters: Meters, tier: str | None) -> float:
    found = hit_rate(meters, tier)
    assert isinstance(found, HitRate), found
    return found.rate


def absent(meters: Meters, tier: str | None) -> MetricAbsent:
    found = hit_rate(meters, tier)
    assert isinstance(found, MetricAbsent), found
    return found


def test_a_host_tier_that_restores() -> None:
    meters = window("0.32.0-host", "cold", "restored")
    assert meters.prompt_tokens.value == PROMPT_TOKENS
    assert rate(meters, "device") == 0
    assert rate(meters, "external") == rate(meters, "host") == rate(meters, None) == RESTORED_TOKENS / PROMPT_TOKENS
    assert rate(meters, "disk") == 0
    assert meters.local_compute_tokens.value == PROMPT_TOKENS - RESTORED_TOKENS
    assert meters.load_bytes.value == 60 * 2**20
    assert meters.store_bytes.value == 0
    assert meters.allocation_failures.value == 0
    assert meters.load_bandwidth.value is not None
    assert meters.load_bandwidth.value > 1e6
    assert meters.ttft.count == 8
    assert meters.lookup_sync[SCHEDULER].count == 8
    assert meters.lookup_async[SCHEDULER].count == 0
    assert (meters.connector, meters.device_cache_tokens, meters.caveats) == ("OffloadingConnector", 10_240, ())


def test_a_disk_tier_is_told_from_the_host() -> None:
    meters = window("0.32.0-fs", "cold", "restored")
    assert rate(meters, "disk") == RESTORED_TOKENS / PROMPT_TOKENS
    assert rate(meters, "host") == 0
    assert set(meters.tiers) == {"1:fs"}
    tier = meters.tiers["1:fs"]
    assert tier.read_bytes.value == 60 * 2**20
    assert (tier.write_bytes.value, tier.promotion_failures.value) == (0, 0)
    assert tier.read_bandwidth.value is not None
    assert tier.write_bandwidth.reason.endswith("did not move")
    assert set(meters.lookup_async) == {SCHEDULER, "1:fs"}
    assert set(meters.lookup_sync) == {SCHEDULER, "0:primary", "1:fs"}
    assert meters.connector == "OffloadingConnector with tiers"


def test_the_cold_pass_stores_and_loads_nothing() -> None:
    meters = window("0.32.0-host", "boot", "cold")
    assert rate(meters, None) == 0
    assert meters.store_bytes.value == 60 * 2**20
    # Declared, no series before its first use: that is a zero.
    assert meters.load_bytes.value == 0
    assert meters.load_bandwidth.value is None


def test_a_server_without_a_connector_has_no_load_meter_rather_than_zero() -> None:
    meters = window("0.32.0-off", "cold", "resident")
    assert meters.connector is None
    assert meters.load_bytes.value is None
    assert "needs the OffloadingConnector" in meters.load_bytes.reason
    assert meters.lookup_sync[SCHEDULER].histogram is None
    assert rate(meters, "external") == 0


def test_the_device_cache_answers_what_it_still_holds() -> None:
    meters = window("0.32.0-host", "restored", "resident")
    assert rate(meters, "device") == 0.96
    assert rate(meters, "external") == 0


def test_versions_before_0_32_do_not_tell_tiers_apart() -> None:
    page = (
        "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total {n}\n"
        "# TYPE vllm:prompt_tokens_by_source_total counter\n"
        'vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} 0\n'
        'vllm:prompt_tokens_by_source_total{{source="external_kv_transfer"}} {n}\n'
    )
    meters = of_text(page.format(n=0), page.format(n=100), version="0.27.1")
    found = absent(meters, "host")
    assert found.since == "0.32.0"
    assert str(found) == (
        "no hit rate of tier host: not exposed: vllm:prompt_tokens_cached_by_source_total exists from vLLM 0.32.0 on, "
        "and this server is 0.27.1; tier 'external' counts all of them together"
    )
    assert rate(meters, "external") == 1


def test_the_double_count_of_0_26_does_not_reach_the_rates() -> None:
    # One request of 200 tokens whose lookup was retried twice: 600 queries, 192 hits from the tier.
    page = (
        "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total {n}\n"
        "# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total {queries}\n"
        "# TYPE vllm:prompt_tokens_by_source_total counter\n"
        'vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} 0\n'
        'vllm:prompt_tokens_by_source_total{{source="external_kv_transfer"}} {hits}\n'
    )
    meters = of_text(page.format(n=0, queries=0, hits=0), page.format(n=200, queries=600, hits=192), version="0.26.0")
    assert rate(meters, "external") == 0.96


def test_no_prompt_in_the_window_is_no_rate() -> None:
    meters = window("0.32.0-host", "cold", "cold")
    assert absent(meters, None).reason == "no prompt was processed in the window"


def test_no_metrics_at_all_is_no_rate() -> None:
    meters = of_text("other 1\n", "other 2\n", version=None)
    reason = absent(meters, "device").reason
    assert reason == (
        "not exposed: vllm:prompt_tokens_by_source_total needs a server that keeps statistics (no --disable-log-stats)"
    )
    assert meters.prefill_cost is None
    assert meters.engines == ()


def test_the_clients_count_is_the_denominator_where_it_is_known() -> None:
    meters = window("0.32.0-host", "cold", "restored", prompt_tokens=32_000)
    assert rate(meters, "host") == RESTORED_TOKENS / 32_000
    assert meters.caveats == (
        "the client sent 32000 prompt tokens, the server counted 16000 in the window: other traffic, or requests in "
        "flight at its edges",
    )
    assert window("0.32.0-host", "cold", "restored", prompt_tokens=16_000).caveats == ()


def test_an_unknown_tier_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"unknown tier 'hosts' \(did you mean 'host'\?\); tiers are device, disk"):
        hit_rate(window("0.32.0-host", "cold", "restored"), "hosts")


def test_chunk_rounding_is_explained() -> None:
    host = hit_rate(window("0.32.0-host", "cold", "restored"), "host")
    assert isinstance(host, HitRate)
    assert host.note == (
        "a tier serves whole chunks (a multiple of the 128-token block): the rest of a prefix, and a prefix shorter "
        "than a chunk, never hits"
    )
    device = hit_rate(window("0.32.0-host", "cold", "restored"), "device")
    assert isinstance(device, HitRate)
    assert device.note == "the device cache serves whole blocks of 128 tokens and never a prompt's last token"


def test_the_price_of_computing_comes_from_the_larger_sample() -> None:
    # The restored pass computes 80 tokens a request: all overhead. The cold pass is remembered in the totals.
    restored = window("0.32.0-host", "cold", "restored").prefill_cost
    cold = window("0.32.0-host", "boot", "cold").prefill_cost
    assert restored is not None
    assert cold is not None
    assert (restored.scope, restored.computed_tokens) == ("since boot", 16_640)
    assert (cold.scope, cold.computed_tokens) == ("window", 16_000)
    assert 0 < restored.seconds_per_token_low < restored.seconds_per_token_high


def test_engines_one_by_one() -> None:
    page = "# TYPE vllm:prompt_tokens_total counter\n# TYPE vllm:prompt_tokens_by_source_total counter\n"
    for engine, value in (("0", 100), ("1", 300)):
        page += f'vllm:prompt_tokens_total{{engine="{engine}"}} {value}\n'
        page += f'vllm:prompt_tokens_by_source_total{{engine="{engine}",source="external_kv_transfer"}} {value / 2}\n'
        page += f'vllm:prompt_tokens_by_source_total{{engine="{engine}",source="local_cache_hit"}} 0\n'
    meters = of_text("vllm:nothing 1\n", page)
    assert rate(meters, "external") == 0.5
    assert [(e.engine, e.prompt_tokens.value, e.external_hit_tokens.value) for e in meters.engines] == [
        ("0", 100, 50),
        ("1", 300, 150),
    ]


def test_resets_and_restarts_are_caveats() -> None:
    page = "process_start_time_seconds {start}\n# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total {n}\n"
    (restart,) = of_text(page.format(start=1, n=5), page.format(start=2, n=3)).caveats
    assert restart.startswith("the process behind http://vllm.test/metrics was replaced in the window")
    (reset,) = of_text(page.format(start=1, n=5), page.format(start=1, n=3)).caveats
    assert reset.startswith("1 counters went back in the window, the counts are lower bounds: vllm:prompt_tokens{")


def test_lookup_delays_without_a_tier_label() -> None:
    name = "vllm:kv_offload_tiering_lookup_sync_delay_seconds"
    text = f'# TYPE {name} histogram\n{name}_bucket{{le="+Inf"}} 3\n{name}_count 3\n{name}_sum 1\n'
    meters = of_text("a 1\n", text, version="0.27.1")
    assert meters.lookup_sync["all tiers"].count == 3


def test_an_lmcache_server_among_the_endpoints() -> None:
    text = "# TYPE lmcache_mp_lookup_hit_l1_tokens_total counter\nlmcache_mp_lookup_hit_l1_tokens_total 50\n"
    text += "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total 100\n"
    meters = of_text("a 1\n", text)
    assert rate(meters, "lmcache_l1") == 0.5
    assert "lmcache_l2" not in meters.hit_tokens


def test_the_device_cache_of_one_of_two_ranks() -> None:
    # Each rank shows the blocks of both.
    text = "# TYPE vllm:cache_config_info gauge\n# TYPE vllm:prompt_tokens counter\n" + "".join(
        f'vllm:cache_config_info{{block_size="128",num_gpu_blocks="80",engine="{rank}"}} 1.0\n'
        f'vllm:prompt_tokens_total{{engine="{rank}"}} 5\n'
        for rank in (0, 1)
    )
    assert of_text(text, text).device_cache_tokens == 40 * 128
