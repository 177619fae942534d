"""The LMCache kinds: options become a command, a configuration and an environment, or are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.catalog.lmcache import load_lmcache
from pytest_kvoffload.engine import connector_argv
from pytest_kvoffload.engine.connectors import LaunchContext, LaunchParts
from pytest_kvoffload.errors import ConfigError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, TierClear

PORTS = {"lmcache": 5001, "lmcache-http": 5002, "lmcache-api": 5003, "lmcache-lm": 5004, "lmcache-redis": 5005}
PORTS |= {"lmcache-2": 6001, "lmcache-http-2": 6002, "lmcache-api-2": 6003}


def parts(
    kind: str,
    options: Mapping[str, Any],
    *,
    engine: str = "cpu",
    args: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    lmcache: str | None = "0.5.6",
    scratch: str = "/boot",
) -> LaunchParts:
    context = LaunchContext(
        cpu_platform=engine == "cpu",
        server_version="0.32.0",
        lmcache_version=lmcache,
        python="/venv/bin/python",
        scratch=Path(scratch),
        port=PORTS.__getitem__,
    )
    return connector_argv(
        ConnectorConfig(name="arm", kind=kind, options=dict(options)),
        engine=EngineConfig(kind="cpu" if engine == "cpu" else "local", args=args, env=dict(env or {})),
        server_version="0.32.0",
        context=context,
    )


def mp(options: Mapping[str, Any] | None = None, **where: Any) -> LaunchParts:
    return parts("lmcache_mp", {"l1_size_gb": 0.5, **(options or {})}, **where)


def inside(options: Mapping[str, Any] | None = None, **where: Any) -> LaunchParts:
    return parts("lmcache_inprocess", {"max_local_cpu_size": 1, **(options or {})}, **where)


def extra(made: LaunchParts) -> Any:
    assert made.kv_transfer_config is not None
    return made.kv_transfer_config["kv_connector_extra_config"]


def server_words(made: LaunchParts) -> list[str]:
    (helper,) = made.helpers
    return list(helper.command)


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


# --------------------------------------------------------------------------------------------------- MP mode
def test_a_managed_server_is_a_helper_and_vllm_is_pointed_at_it() -> None:
    made = mp()
    words = server_words(made)
    assert words[:3] == ["/venv/bin/python", "-m", "lmcache.v1.multiprocess.http_server"]
    assert [value(words, flag) for flag in ("--host", "--port", "--http-host", "--http-port")] == [
        "127.0.0.1",
        "5001",
        "127.0.0.1",
        "5002",
    ]
    assert value(words, "--l1-size-gb") == "0.5"
    assert value(words, "--chunk-size") == "256"
    assert value(words, "--eviction-policy") == "LRU"
    assert made.helpers[0].ready_url == "http://127.0.0.1:5002/healthcheck"
    assert extra(made) == {
        "lmcache.mp.host": "tcp://127.0.0.1",
        "lmcache.mp.port": 5001,
        "lmcache.mp.mq_timeout": 25.0,
    }
    assert made.metrics_urls == ("http://127.0.0.1:5002/metrics",)
    assert made.clears == (TierClear(action="post", target="http://127.0.0.1:5002/cache/clear"),)
    assert (made.salted, made.chunk_tokens, made.packages) == (True, 256, ("lmcache",))
    assert made.env["LMCACHE_TRACK_USAGE"] == made.helpers[0].env["LMCACHE_TRACK_USAGE"] == "false"


@pytest.mark.parametrize(
    ("engine", "mode", "server", "client"),
    [
        ("cpu", "auto", "engine_driven", None),
        ("gpu", "auto", "auto", None),
        ("cpu", "lmcache_driven", "lmcache_driven", "lmcache_driven"),
        ("gpu", "engine_driven", "engine_driven", "engine_driven"),
    ],
)
def test_the_transfer_mode_is_one_that_both_ends_speak(engine: str, mode: str, server: str, client: str | None) -> None:
    made = mp({"transfer_mode": mode}, engine=engine)
    assert value(server_words(made), "--supported-transfer-mode") == server
    assert extra(made).get("lmcache.mp.mp_transfer_mode") == client


def test_disk_adapters_without_a_path_get_one_of_this_boot() -> None:
    made = mp({"l2": [{"type": "fs"}, {"type": "fs", "base_path": "/data"}, {"type": "fault_inject", "rate": 0.1}]})
    words = server_words(made)
    adapters = [json.loads(words[at + 1]) for at, word in enumerate(words) if word == "--l2-adapter"]
    assert adapters == [
        {"type": "fs", "base_path": "/boot/lmcache-l2-0"},
        {"type": "fs", "base_path": "/data"},
        {"type": "fault_inject", "rate": 0.1},
    ]


def test_autostart_hands_the_servers_arguments_to_vllm() -> None:
    made = mp({"server": "autostart", "server_args": ["--max-workers", "2"]})
    assert made.helpers == ()
    given = extra(made)["lmcache.mp.autostart.server_args"]
    assert extra(made)["lmcache.mp.autostart"] is True
    assert given == (
        "--l1-size-gb 0.5 --chunk-size 256 --eviction-policy LRU --supported-transfer-mode engine_driven "
        "--max-workers 2 --http-port 5002"
    )
    assert made.metrics_urls == ("http://127.0.0.1:5002/metrics",)


def test_autostart_is_refused_where_lmcache_would_ignore_it() -> None:
    with pytest.raises(ConfigError) as caught:
        mp({"server": "autostart"}, lmcache="0.5.5")
    assert "got 'autostart'; expected 'managed' or 'external' with LMCache 0.5.5" in str(caught.value)
    assert "autostart came with 0.5.6" in str(caught.value)
    assert mp({"server": "autostart"}, lmcache=None).helpers == ()


def test_by_flag_vllm_names_the_connector_itself() -> None:
    made = mp({"via": "flag"})
    assert made.args[:4] == ("--kv-offloading-backend", "lmcache", "--kv-offloading-size", "0.5")
    assert json.loads(made.args[5]).keys() == {"kv_connector_extra_config"}
    assert extra(made)["lmcache.mp.port"] == 5001


def test_an_external_server_is_used_and_left_as_it_is() -> None:
    options = {"server": "external", "url": "tcp://kv.local:7000", "http_url": "http://kv.local:8080/"}
    made = parts("lmcache_mp", options)
    assert extra(made)["lmcache.mp.host"] == "tcp://kv.local"
    assert extra(made)["lmcache.mp.port"] == 7000
    assert made.metrics_urls == ("http://kv.local:8080/metrics",)
    assert (made.helpers, made.clears) == ((), ())
    assert parts("lmcache_mp", {"server": "external", "url": "10.0.0.1:5555"}).metrics_urls == ()


def test_extra_config_wins_and_passes_unchecked() -> None:
    made = mp({"extra_config": {"lmcache.mp.mq_timeout": 3, "lmcache.mp.save_decode_cache": True}})
    assert extra(made)["lmcache.mp.mq_timeout"] == 3
    assert extra(made)["lmcache.mp.save_decode_cache"] is True


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"l1_size_gib": 1}, "did you mean 'l1_size_gb'?"),
        ({"l1_size_gb": None}, "in GiB over all ranks"),
        ({"server": "manged"}, "did you mean 'managed'?"),
        ({"eviction_policy": "lru"}, "did you mean 'LRU'?"),
        ({"transfer_mode": "shm"}, "one of auto, engine_driven, lmcache_driven"),
        ({"chunk_size": 200}, "a multiple of vLLM's block of 128 tokens, such as 128 or 256"),
        ({"chunk_size": 64}, "a multiple of vLLM's block of 128 tokens, such as 128"),
        ({"l2": {"type": "fs"}}, "a list of tables, each with a type"),
        ({"l2": [{"base_path": "/x"}]}, "tables, each with a type"),
        ({"l2": [{"type": "disk"}]}, "which does not exist"),
        ({"server_args": ["--port", "1"]}, "no --port: a free port is found"),
        ({"server_args": ["--l1-size-gb=3"]}, "no --l1-size-gb: write l1_size_gb"),
        ({"server_args": "--max-workers 2"}, "a list of strings"),
        ({"url": "tcp://x:1"}, "it is for server = 'external'"),
        ({"server": "external", "url": "tcp://x:1"}, "none with server = 'external'"),
        ({"server": "external", "l1_size_gb": None}, "where the LMCache server listens"),
        ({"server": "external", "l1_size_gb": None, "url": "http://x:1"}, "tcp://HOST:PORT"),
        ({"server": "external", "l1_size_gb": None, "url": "x:70000"}, "tcp://HOST:PORT"),
        ({"server": "external", "l1_size_gb": None, "url": "x:1", "http_url": "x:2"}, "the server's HTTP address"),
    ],
)
def test_mistakes_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mp(options)
    assert text in str(caught.value)
    assert "[connectors.arm]" in str(caught.value)


def test_a_chunk_fits_the_block_size_that_is_given() -> None:
    assert mp({"chunk_size": 48}, args=("--block-size", "16")).chunk_tokens == 48
    assert mp({"chunk_size": 100}, engine="gpu").chunk_tokens == 100  # vLLM's own block size is not known yet


# ------------------------------------------------------------------------------------------------ in-process
def test_in_process_is_our_copy_on_the_cpu_engine_and_lmcaches_own_elsewhere() -> None:
    made = inside()
    assert made.kv_transfer_config == {
        "kv_connector": "KVOffloadLMCacheConnector",
        "kv_connector_module_path": "kvoffload_lmcache_connector",
        "kv_role": "kv_both",
    }
    assert made.env["PYTHONPATH"].endswith("engine/inside")
    assert (Path(made.env["PYTHONPATH"]) / "kvoffload_lmcache_connector.py").is_file()
    gpu = inside(engine="gpu")
    assert gpu.kv_transfer_config == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    assert "PYTHONPATH" not in gpu.env


def test_memory_is_cleared_by_the_workers_own_endpoint_and_keys_ignore_salts() -> None:
    made = inside()
    shown = {name: text for name, text in made.env.items() if name.startswith(("LMCACHE_", "PYTHONHASH"))}
    assert shown == {
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "1",
        "LMCACHE_CHUNK_SIZE": "256",
        "LMCACHE_INTERNAL_API_SERVER_ENABLED": "True",
        "LMCACHE_INTERNAL_API_SERVER_HOST": "127.0.0.1",
        # The scheduler would take this port, worker 0 the next.
        "LMCACHE_INTERNAL_API_SERVER_PORT_START": "5002",
        "LMCACHE_INTERNAL_API_SERVER_INCLUDE_INDEX_LIST": "1",
        "PYTHONHASHSEED": "0",
    }
    assert made.clears == (TierClear(action="delete", target="http://127.0.0.1:5003/cache/clear"),)
    assert not made.salted
    assert made.fresh_dirs == {"PROMETHEUS_MULTIPROC_DIR": "prometheus"}


def test_several_ranks_cannot_be_cleared_by_one_endpoint() -> None:
    made = inside(args=("--tensor-parallel-size", "2"))
    assert "LMCACHE_INTERNAL_API_SERVER_ENABLED" not in made.env
    assert [clear.action for clear in made.clears] == ["new_server"]


def test_the_users_environment_wins() -> None:
    made = inside(env={"PYTHONHASHSEED": "7", "LMCACHE_CHUNK_SIZE": "512"})
    assert made.env["PYTHONHASHSEED"] == "7"
    assert made.env["LMCACHE_CHUNK_SIZE"] == "512"
    assert inside({"hash_seed": "random"}).env["PYTHONHASHSEED"] == "random"


def test_a_disk_needs_a_new_server_to_be_empty() -> None:
    made = inside({"local_disk": True, "max_local_disk_size": 2})
    assert made.env["LMCACHE_LOCAL_DISK"] == "/boot/lmcache-disk"
    assert made.env["LMCACHE_MAX_LOCAL_DISK_SIZE"] == "2"
    assert made.clears == (TierClear(action="new_server", target="LMCache's local disk"),)


def test_a_remote_of_ours_is_a_helper() -> None:
    made = inside({"local_cpu": False, "remote": "lm"})
    assert made.env["LMCACHE_LOCAL_CPU"] == "False"
    assert made.env["LMCACHE_REMOTE_URL"] == "lm://127.0.0.1:5004"
    assert server_words(made) == ["/venv/bin/python", "-m", "lmcache.v1.server", "127.0.0.1", "5004"]
    assert made.clears == (TierClear(action="new_server", target="LMCache's lm:// server"),)


def test_a_redis_of_ours_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "redis-server" else None)
    made = inside({"remote": "redis"})
    assert server_words(made)[:5] == ["/usr/bin/redis-server", "--port", "5005", "--bind", "127.0.0.1"]
    assert [(clear.action, clear.target) for clear in made.clears] == [
        ("delete", "http://127.0.0.1:5003/cache/clear"),
        ("redis_flush", "redis://127.0.0.1:5005"),
    ]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="redis-server on PATH"):
        inside({"remote": "redis"})


def test_a_remote_of_the_users_is_emptied_only_when_told() -> None:
    url = "redis://user:pw@db:6379/3"
    assert inside({"remote_url": url}).clears == ()
    made = inside({"remote_url": url, "flush_remote": True})
    assert made.clears[-1] == TierClear(action="redis_flush", target=url)
    assert inside({"remote_url": "lm://host:1"}).clears == ()


def test_other_keys_go_into_the_environment_as_lmcache_reads_them(tmp_path: Path) -> None:
    config = {"cache_policy": "LFU", "extra_config": {"a": 1}, "retrieve_locations": ["x", "y"]}
    made = inside({"config": config})
    assert made.env["LMCACHE_CACHE_POLICY"] == "LFU"
    assert json.loads(made.env["LMCACHE_EXTRA_CONFIG"]) == {"a": 1}
    assert made.env["LMCACHE_RETRIEVE_LOCATIONS"] == "x,y"
    assert made.clears == ()  # a further store may be among them
    file = tmp_path / "lmcache.yaml"
    file.write_text("max_local_cpu_size: 2\n")
    made = parts("lmcache_inprocess", {"config_file": str(file)})
    assert made.env["LMCACHE_CONFIG_FILE"] == str(file)
    assert "LMCACHE_MAX_LOCAL_CPU_SIZE" not in made.env
    assert "LMCACHE_CHUNK_SIZE" not in made.env
    assert made.chunk_tokens is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_local_cpu_size": None}, "in GiB per rank"),
        ({"max_local_cpu_size": "5Gi"}, "a number above 0"),
        ({"max_local_cpu": 1}, "did you mean 'max_local_cpu_size'?"),
        ({"local_cpu": "yes"}, "true or false (not a string)"),
        ({"local_disk": True}, "without it LMCache ignores local_disk"),
        ({"max_local_disk_size": 1}, "without one there is no disk"),
        ({"local_disk": "True", "max_local_disk_size": 1}, "LMCache would make a directory ./True"),
        ({"local_disk": 3, "max_local_disk_size": 1}, "true (a directory of this boot) or a path"),
        ({"remote": "rediss"}, "did you mean 'redis'?"),
        ({"remote": "lm", "remote_url": "lm://x:1"}, "not both"),
        ({"remote": "lm", "flush_remote": True}, "emptied anyway"),
        ({"remote_url": "lm://x:1", "flush_remote": True}, "nothing is known that empties another store"),
        ({"remote_url": "/tmp/x"}, "a URL such as lm://HOST:PORT"),
        ({"flush_remote": True}, "a remote or remote_url that it speaks of"),
        ({"hash_seed": -1}, "a whole number from 0 to 4294967295, or 'random'"),
        ({"config": {"cache_polcy": "LRU"}}, "did you mean 'cache_policy'?"),
        ({"config": {"chunk_size": 1}}, "no chunk_size here"),
        ({"config_file": "/no/such.yaml"}, "a YAML file that is there"),
    ],
)
def test_mistakes_in_process_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        inside(options)
    assert text in str(caught.value)


def test_the_transfer_modes_default_is_known_by_version() -> None:
    catalog = load_lmcache()
    defaults = {}
    for version in ("0.4.7", "0.5.3", "0.5.4", "0.5.6"):
        fact = catalog.find("--supported-transfer-mode", version)
        assert fact is not None
        defaults[version] = fact.default
    assert defaults == {"0.4.7": "auto", "0.5.3": "auto", "0.5.4": "lmcache_driven", "0.5.6": "lmcache_driven"}
    missing = catalog.missing("lmcache.mp.autostart", "0.5.0")
    assert missing is not None
    assert missing.since == "0.5.6"
    assert catalog.missing("lmcache.mp.autostart", "0.5.6") is None


@pytest.mark.parametrize(
    ("config", "packages"),
    [
        ({"kv_connector": "LMCacheConnectorV1"}, ("lmcache",)),
        ({"kv_connector": "OffloadingConnector"}, ()),
        (
            {
                "kv_connector": "MultiConnector",
                "kv_connector_extra_config": {"connectors": [{"kv_connector": "LMCacheMP"}]},
            },
            ("lmcache",),
        ),
        ({"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [3, {}]}}, ()),
    ],
)
def test_a_raw_configuration_says_what_the_managed_engine_must_have(
    config: dict[str, Any], packages: tuple[str, ...]
) -> None:
    assert parts("raw", {"kv_transfer_config": config}).packages == packages


def test_inside_a_multi_connector_it_is_our_copy_too() -> None:
    children = [{"kind": "native", "size_gib": 1}, {"kind": "lmcache_inprocess", "max_local_cpu_size": 1}]
    made = parts("multi", {"connectors": children})
    assert made.env["PYTHONPATH"].endswith("engine/inside")
    assert made.env["LMCACHE_MAX_LOCAL_CPU_SIZE"] == "1"
    assert made.fresh_dirs == {"PROMETHEUS_MULTIPROC_DIR": "prometheus"}
    assert not made.salted
    assert [clear.action for clear in made.clears] == ["delete"]
    assert made.packages == ("lmcache",)


# ------------------------------------------------------------------------------------------- what an older run left
@pytest.mark.parametrize("flag", ["--data-parallel-size", "-dp", "--tensor-parallel-size"])
def test_the_memory_of_several_ranks_is_not_cleared_through_the_first(flag: str) -> None:
    made = inside(args=(flag, "2"))
    assert made.clears == (TierClear(action="new_server", target="the memory of several ranks"),)
    assert "LMCACHE_INTERNAL_API_SERVER_ENABLED" not in made.env
    assert inside(args=(flag, "1")).clears[0].action == "delete"


@pytest.mark.parametrize(
    "variable", ["LMCACHE_REMOTE_URL", "LMCACHE_LOCAL_DISK", "LMCACHE_CONFIG_FILE", "LMCACHE_GDS_PATH"]
)
@pytest.mark.parametrize("origin", ["engine", "shell"])
def test_a_store_that_the_environment_names_keeps_a_phase_from_being_cold(
    variable: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if origin == "shell":
        monkeypatch.setenv(variable, "/store")
    made = inside(env={variable: "/store"} if origin == "engine" else {})
    assert made.clears == (), "LMCache's own clear does not reach that store"
    assert any(variable in note and "cannot be emptied" in note for note in made.notes)
    assert not made.salted


def test_other_variables_of_lmcache_change_nothing_of_that() -> None:
    assert inside(env={"LMCACHE_LOG_LEVEL": "DEBUG", "LMCACHE_REMOTE_URL": ""}).clears[0].action == "delete"


# ------------------------------------------------------------------------------------------------ several in one server
def test_two_lmcache_servers_of_one_vllm_have_ports_and_directories_of_their_own() -> None:
    child = {"kind": "lmcache_mp", "l1_size_gb": 0.5, "l2": [{"type": "fs"}]}
    made = parts("multi", {"connectors": [child, child]})
    first, second = made.helpers
    assert (first.ready_port, second.ready_port) == (5001, 6001)
    assert (first.ready_url, second.ready_url) == (
        "http://127.0.0.1:5002/healthcheck",
        "http://127.0.0.1:6002/healthcheck",
    )
    assert "/boot/lmcache-l2-0" in " ".join(first.command)
    assert "/boot/2/lmcache-l2-0" in " ".join(second.command)
    children = extra(made)["connectors"]
    assert [one["kv_connector_extra_config"]["lmcache.mp.port"] for one in children] == [5001, 6001]
    assert [clear.target for clear in made.clears] == [
        "http://127.0.0.1:5002/cache/clear",
        "http://127.0.0.1:6002/cache/clear",
    ]


def test_children_that_want_different_things_of_one_environment_are_refused() -> None:
    children = [{"kind": "lmcache_inprocess", "max_local_cpu_size": size} for size in (1, 2)]
    with pytest.raises(ConfigError, match=r"LMCACHE_MAX_LOCAL_CPU_SIZE.*one environment") as caught:
        parts("multi", {"connectors": children})
    assert caught.value.section == "connectors.arm.connectors[1]"
