"""What a server needs, read off its transfer configuration, arguments and environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.catalog.host_memory import backing_of, load_host_memory
from pytest_kvoffload.engine.preflight import what_is_needed
from pytest_kvoffload.engine.preflight.needs import Needs, ObjectStore, derive
from pytest_kvoffload.records import ConnectorConfig, EngineConfig

GIB = 2**30


def needs(
    config: dict[str, Any] | None,
    *words: str,
    platform: Any = "cuda",
    version: str | None = "0.32.0",
    env: dict[str, str] | None = None,
) -> Needs:
    return derive(transfer_config=config, words=words, env=env or {}, platform=platform, version=version)


def offloading(**extra: Any) -> dict[str, Any]:
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


@pytest.mark.parametrize(
    ("spec", "platform", "version", "where"),
    [
        ("host", "cuda", "0.26.0", "pinned"),
        ("host", "cuda", "0.27.1", "shm"),
        ("host", "cuda", "0.33.0", "shm"),
        ("host", "rocm", "0.26.0", "private"),
        ("host", "rocm", "0.30.0", "shm"),
        ("host", "rocm", "0.31.0", "private"),
        ("host", "xpu", "0.31.0", "private"),
        ("host", "xpu", "0.32.0", "shm"),
        ("host", "cpu", "0.32.0", "private"),
        ("tiering", "cpu", "0.26.0", "shm"),
        ("tiering", "cuda", "0.33.0rc1", "shm"),
        ("host", "cuda", None, "shm"),
        ("host", "cuda", "0.32.0+cu129", "shm"),
    ],
)
def test_where_the_bytes_live(spec: Any, platform: Any, version: str | None, where: str) -> None:
    assert backing_of(spec, platform=platform, version=version).where == where


def test_a_version_before_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no fact about the memory of a host tier on xpu in vLLM 0\.9\.0"):
        backing_of("host", platform="xpu", version="0.9.0")


def test_every_backing_has_a_source() -> None:
    assert all(entry.source for entry in load_host_memory().backing)


def test_the_host_tier_of_cuda_lies_in_shm() -> None:
    found = needs(offloading(cpu_bytes_to_use=4 * GIB))
    assert (found.tier_bytes, found.shm_bytes) == (4 * GIB, 4 * GIB)
    assert found.filled_at_boot_bytes >= 4 * GIB
    assert "host tier in /dev/shm 4.00 GiB" in found.host_explanation


def test_pinned_memory_of_026_is_rounded_up_per_rank() -> None:
    found = needs(offloading(cpu_bytes_to_use=400 * GIB), "--tensor-parallel-size", "2", version="0.26.0")
    assert (found.tier_bytes, found.shm_bytes) == (512 * GIB, 0)


def test_data_parallel_engines_have_a_tier_each() -> None:
    found = needs(offloading(cpu_bytes_to_use=GIB), "-dp=4", "-tp", "2")
    assert found.tier_bytes == 4 * GIB
    assert found.ranks == 8


def test_the_size_flag_wins_as_in_vllm() -> None:
    assert needs(None, "--kv-offloading-size", "2.5").shm_bytes == int(2.5 * GIB)
    assert needs(offloading(cpu_bytes_to_use=1), "--kv-offloading-size=2").shm_bytes == 2 * GIB
    lmcache = needs(None, "--kv-offloading-size", "2", "--kv-offloading-backend", "lmcache")
    assert lmcache.tier_bytes == 0
    assert lmcache.servers == (("LMCache server", "localhost", 5555),)


def test_secondary_tiers_give_directories_stores_and_packages() -> None:
    store = {"bucket": "kv", "endpoint_override": "127.0.0.1:9000", "access_key": "a", "secret_key": "s", "region": ""}
    found = needs(
        offloading(
            spec_name="TieringOffloadingSpec",
            cpu_bytes_to_use="1000000",
            secondary_tiers=[
                {"type": "fs", "root_dir": "/kv/disk"},
                {"type": "obj", "store_config": store, "prefix": "p"},
                {"type": "fs"},
                "no table",
            ],
        ),
        platform="cpu",
    )
    assert found.shm_bytes == 1_000_000
    assert found.tier_dirs == (Path("/kv/disk"),)
    assert found.object_stores == (
        ObjectStore(bucket="kv", endpoint="127.0.0.1:9000", access_key="a", secret_key="s", prefix="p"),
    )
    assert found.packages == ("nixl", "nixl:OBJ")
    assert found.object_stores[0].url == "http://127.0.0.1:9000"


def test_secondary_tiers_without_the_tiering_spec_are_ignored_as_vllm_does() -> None:
    found = needs(offloading(cpu_bytes_to_use=GIB, secondary_tiers=[{"type": "fs", "root_dir": "/kv/disk"}]))
    assert found.tier_dirs == ()


def test_children_of_a_multiconnector_add_up() -> None:
    config = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {
            "connectors": [
                offloading(cpu_bytes_to_use=GIB),
                {"kv_connector": "SimpleCPUOffloadConnector"},
                {"kv_connector": "NixlConnector"},
                7,
            ]
        },
    }
    found = needs(config)
    assert (found.tier_bytes, found.shm_bytes) == (9 * GIB, GIB)
    assert found.packages == ("nixl",)


def test_lmcache_in_process_counts_per_rank() -> None:
    config = {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {}}
    assert needs(config, "-tp", "4").tier_bytes == 20 * GIB
    env = {
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "2",
        "LMCACHE_LOCAL_DISK": "file:///kv/d",
        "LMCACHE_REMOTE_URL": "lm://h:65432",
    }
    found = needs(config, "-tp", "4", env=env)
    assert found.tier_bytes == 8 * GIB
    assert found.tier_dirs == (Path("/kv/d"),)
    assert found.servers == (("LMCache remote store lm://", "h", 65432),)
    config["kv_connector_extra_config"] = {"lmcache.max_local_cpu_size": 1}
    assert needs(config, env=env).tier_bytes == GIB


def test_lmcache_servers_must_be_listening_unless_vllm_starts_them() -> None:
    def mp(**extra: Any) -> Needs:
        keys = {f"lmcache.mp.{key}": value for key, value in extra.items()}
        return needs({"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": keys})

    assert mp(host="tcp://10.0.0.7", port=8210).servers == (("LMCache server", "10.0.0.7", 8210),)
    urls = mp(server_urls="tcp://a:1, b:2").servers
    assert [(host, port) for _, host, port in urls] == [("a", 1), ("b", 2)]
    started = needs(
        {
            "kv_connector": "LMCacheMPConnector",
            "kv_connector_extra_config": {
                "lmcache.mp.autostart": True,
                "lmcache.mp.autostart.server_args": "--l1-size-gb 1.5 --chunk-size 256",
            },
        }
    )
    assert (started.servers, started.tier_bytes) == ((), int(1.5 * GIB))


def test_what_vllm_would_refuse_does_not_break_the_arithmetic() -> None:
    values: tuple[Any, ...] = ("8G", None, -5, [], True, float("nan"))
    for value in values:
        assert needs(offloading(cpu_bytes_to_use=value)).tier_bytes == 0
    assert needs({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": "text"}).tier_bytes == 0


def test_a_connector_of_the_configuration_is_read_through_its_kind() -> None:
    found = what_is_needed(
        engine=EngineConfig(kind="cpu", env={"VLLM_CPU_KVCACHE_SPACE": "2"}, vllm_version="0.32.0"),
        connector=ConnectorConfig(name="native", kind="native", options={"size_gib": 3}),
        engine_id="e1",
    )
    assert (found.platform, found.tier_bytes, found.shm_bytes) == ("cpu", 3 * GIB, 0)
    assert found.engine_ids == ("e1",)
    assert "device cache and weights 2.00 GiB" in found.host_explanation


def test_a_raw_command_line_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)
    raw = '{"kv_connector": "ExampleConnector", "kv_connector_extra_config": {"shared_storage_path": "/kv/e"}}'
    found = what_is_needed(
        engine=EngineConfig(kind="local"),
        connector=ConnectorConfig(name="mine", kind="recompute", args=("--kv-transfer-config", raw)),
        model_path=tmp_path,
    )
    assert found.tier_dirs == (Path("/kv/e"),)
    assert found.platform == "cuda"


def of_kind(kind: str, **options: Any) -> Needs:
    connector = ConnectorConfig(name="arm", kind=kind, options=options)
    return what_is_needed(engine=EngineConfig(kind="cpu"), connector=connector, server_version="0.32.0")


@pytest.mark.parametrize("server", ["managed", "autostart"])
@pytest.mark.parametrize("via", ["connector", "flag"])
def test_an_lmcache_server_of_ours_is_counted_and_not_looked_for_before_it_starts(server: str, via: str) -> None:
    found = of_kind("lmcache_mp", l1_size_gb=2, server=server, via=via)
    assert found.servers == ()
    assert found.tier_bytes == 2 * GIB
    assert found.packages == ("lmcache",)


def test_an_lmcache_server_of_somebody_else_is_looked_for() -> None:
    found = of_kind("lmcache_mp", server="external", url="tcp://kv:7000")
    assert found.servers == (("LMCache server", "kv", 7000),)


def test_lmcache_in_process_is_counted_on_the_cpu_engine_too() -> None:
    found = of_kind("lmcache_inprocess", max_local_cpu_size=3, local_cpu=False, remote="lm")
    assert found.tier_bytes == 3 * GIB
    assert found.servers == ()
    outside = of_kind("lmcache_inprocess", max_local_cpu_size=1, remote_url="redis://kv:6379")
    assert outside.servers == (("LMCache remote store redis://", "kv", 6379),)
