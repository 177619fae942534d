"""The metric data: consistent in itself, and equal to what recorded pages of real servers expose."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from catalog_check import differences
from expositions import DATA, recorded

from pytest_kvoffload.catalog import metrics as catalog
from pytest_kvoffload.catalog import regenerate_metrics
from pytest_kvoffload.catalog.metrics import all_metrics, metric_fact, metrics_of, why_absent

RECORDED = sorted(path.name for path in DATA.iterdir() if path.is_dir())
VLLM_VERSIONS = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


def conditions_of(server: str) -> Collection[str]:
    return {
        "off": {"always"},
        "host": {"always", "offloading", "kv_consumer"},
        "fs": {"always", "offloading", "tiering", "kv_consumer"},
    }[server.split("-")[1]]


@pytest.mark.parametrize("server", RECORDED)
def test_recorded_pages_agree_with_the_data(server: str) -> None:
    version = server.split("-")[0]
    pages = [recorded(server, stage) for stage in ("boot", "cold", "restored", "resident")]
    assert differences(pages, version=version, conditions=conditions_of(server)) == []


def test_both_versions_and_all_three_servers_were_recorded() -> None:
    expected = [f"{version}-{kind}" for version in ("0.27.1", "0.32.0") for kind in ("fs", "host", "off")]
    assert expected == RECORDED


def test_a_metric_that_the_data_does_not_know_is_found() -> None:
    page = recorded("0.32.0-off", "boot")
    found = differences([page], version="0.27.1", conditions={"always"})
    assert "vllm:prompt_tokens_cached_by_source_total is exposed, but the data does not have it in 0.27.1" in found


def test_the_data_was_read_from_every_version() -> None:
    assert catalog._versions()["vllm"] == VLLM_VERSIONS
    assert catalog._versions()["lmcache"] == ("0.5.0", "0.5.6")


def test_every_note_that_names_a_metric_names_one_that_exists() -> None:
    facts = all_metrics()
    exact = {note.name for note in catalog._notes().metric if "*" not in note.name}
    assert exact <= set(facts)
    for fact in facts.values():
        assert set(fact.twin) <= set(facts)
        assert fact.variants[-1].type != "counter" or fact.name.endswith("_total")


def test_every_pattern_is_needed() -> None:
    used = {catalog._note_for(name, catalog._notes().metric).name for name in all_metrics()}
    assert {note.name for note in catalog._notes().metric} == used


@pytest.mark.parametrize(
    ("name", "since", "until"),
    [
        ("vllm:prompt_tokens_by_source_total", None, None),
        ("vllm:prompt_tokens_cached_by_source_total", "0.32.0", None),
        ("vllm:kv_offload_tiering_read_bytes_total", "0.28.0", None),
        ("vllm:kv_offload_config_info", "0.33.0", None),
        ("vllm:simple_kv_offload_info", "0.31.0", None),
        ("lmcache_mp_lookup_hit_l1_tokens_total", "0.5.6", None),
    ],
)
def test_version_ranges(name: str, since: str | None, until: str | None) -> None:
    fact = metric_fact(name)
    assert fact is not None
    assert (fact.since, fact.until) == (since, until)


def test_lookup_with_and_without_total_and_by_version() -> None:
    fact = metric_fact("vllm:prompt_tokens_cached_by_source")
    assert fact is not None
    assert fact.name == "vllm:prompt_tokens_cached_by_source_total"
    assert metric_fact("vllm:iteration_tokens") is None or metric_fact("vllm:iteration_tokens") == metric_fact(
        "vllm:iteration_tokens_total"
    )
    assert metric_fact("nothing") is None
    # A version that was not read takes after the nearest older one: 0.32.1 has it, 0.31.9 has not.
    assert fact.variant("0.32.1") is not None
    assert fact.variant("0.31.9") is None
    assert fact.variant("9.0.0") is not None
    assert fact.variant("0.1.0") is None
    assert fact.variant("0.32.0+cpu") is not None
    assert fact.variant(None) is not None
    assert fact.variant("nightly") is not None


def test_a_label_that_came_with_a_version() -> None:
    fact = metric_fact("vllm:kv_offload_tiering_lookup_sync_delay_seconds")
    assert fact is not None
    old, new = fact.variant("0.27.1"), fact.variant("0.28.0")
    assert old is not None
    assert new is not None
    assert (old.labels, new.labels) == ((), ("tier",))


def test_reasons_for_absence() -> None:
    assert why_absent("vllm:prompt_tokens_cached_by_source_total", "0.27.1") == (
        "vllm:prompt_tokens_cached_by_source_total exists from vLLM 0.32.0 on, and this server is 0.27.1"
    )
    assert why_absent("vllm:kv_offload_load_bytes_total", "0.32.0") == (
        "vllm:kv_offload_load_bytes_total needs the OffloadingConnector (--kv-offloading-size, or --kv-transfer-config)"
    )
    assert why_absent("vllm:nonsense", "0.32.0").endswith("is not a metric that this version of pytest-kvoffload knows")
    assert "from vLLM 0.31.0 on" in why_absent("vllm:simple_kv_offload_info", None)


def test_gauges_that_do_not_mean_what_they_seem_say_so() -> None:
    for name in ("vllm:kv_offload_cpu_cache_usage_perc", "vllm:kv_offload_tiering_primary_read_usage_perc"):
        fact = metric_fact(name)
        assert fact is not None
        assert "not how full it is" in fact.caveat


def test_0_27_is_a_subset_of_0_32() -> None:
    assert set(metrics_of("vllm", "0.27.1")) < set(metrics_of("vllm", "0.32.0"))


# ------------------------------------------------------------------------------------------- the regenerating script
SOURCE = """
from prometheus_client import Counter
TIER_LABEL = "tier"
class Names:
    READ = "vllm:x_read"
def definitions():
    table = {Names.READ: OffloadingCounterMetadata(documentation="d", labelnames=(TIER_LABEL,))}
    table["vllm:x_size"] = OffloadingHistogramMetadata(documentation="d", buckets=(1, 2.5))
    return table
class Logger:
    def __init__(self):
        self.a = self._gauge_cls(name="vllm:a", labelnames=labelnames)
        self.b = self._counter_cls(name="vllm:b", labelnames=labelnames + ["source"])
        specs = [("vllm:c", "doc"), ("vllm:d", "doc")]
        self.many = [self._counter_cls(name=name, labelnames=labelnames) for name, _ in specs]
        info = "vllm:info"
        self.info = self._gauge_cls(name=info, labelnames=config.keys())
        self.meter.create_counter("lmcache_mp.l1.read", unit="tokens")
        register_gauge("lmcache.l1", "lmcache_mp.l1.age_seconds", "doc", self.age)
        log.info("vllm: not a metric")
"""


def test_what_the_script_reads_from_source(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "metrics.py").write_text(SOURCE)
    assert regenerate_metrics.read_package(package) == {
        "vllm:x_read_total": {"type": "counter", "labels": ["tier"]},
        "vllm:x_size": {"type": "histogram", "labels": [], "buckets": [1.0, 2.5]},
        "vllm:a": {"type": "gauge", "labels": []},
        "vllm:b_total": {"type": "counter", "labels": ["source"]},
        "vllm:c_total": {"type": "counter", "labels": []},
        "vllm:d_total": {"type": "counter", "labels": []},
        "vllm:info": {"type": "gauge", "labels": ["*"]},
        "lmcache_mp_l1_read_tokens_total": {"type": "counter", "labels": ["*"]},
        "lmcache_mp_l1_age_seconds": {"type": "gauge", "labels": ["*"]},
    }


def test_merging_versions() -> None:
    data: dict[str, object] = {"versions": {}, "metrics": {}}
    plain, labelled = {"type": "gauge", "labels": []}, {"type": "gauge", "labels": ["tier"]}
    regenerate_metrics.merge(data, "vllm", "0.10.0", {"vllm:a": labelled})
    regenerate_metrics.merge(data, "vllm", "0.9.0", {"vllm:a": plain, "vllm:b": plain})
    assert data == {
        "versions": {"vllm": ["0.9.0", "0.10.0"]},
        "metrics": {
            "vllm:a": {
                "package": "vllm",
                "variants": [{**plain, "versions": ["0.9.0"]}, {**labelled, "versions": ["0.10.0"]}],
            },
            "vllm:b": {"package": "vllm", "variants": [{**plain, "versions": ["0.9.0"]}]},
        },
    }
    # Reading a version again replaces what was known of it.
    regenerate_metrics.merge(data, "vllm", "0.9.0", {"vllm:a": labelled})
    metrics = data["metrics"]
    assert isinstance(metrics, dict)
    assert list(metrics) == ["vllm:a"]
    assert metrics["vllm:a"]["variants"] == [{**labelled, "versions": ["0.9.0", "0.10.0"]}]


def test_the_data_file_is_written_the_way_the_script_writes_it() -> None:
    import json

    text = regenerate_metrics.DATA_FILE.read_text()
    assert regenerate_metrics.rendered(json.loads(text)) == text


def test_an_interpreter_without_vllm(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, regenerate_metrics.__file__, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (2, "no vllm and no lmcache there\n")
