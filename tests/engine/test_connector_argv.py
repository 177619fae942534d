"""Connector records become exactly the argv and environment that vLLM wants, and mistakes are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_kvoffload.engine import LaunchParts, connector_argv, validate_connector
from pytest_kvoffload.errors import ConfigError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig

CPU, GPU = EngineConfig(kind="cpu"), EngineConfig(kind="local")


def parts(kind: str, engine: EngineConfig = CPU, **options: Any) -> LaunchParts:
    connector = ConnectorConfig(name="arm", kind=kind, options=options)
    return connector_argv(connector, engine=engine, server_version="0.32.0")


def extra(made: LaunchParts) -> dict[str, Any]:
    assert made.kv_transfer_config is not None
    found: dict[str, Any] = made.kv_transfer_config["kv_connector_extra_config"]
    return found


def test_recompute_adds_nothing() -> None:
    assert parts("recompute") == LaunchParts()
    with pytest.raises(ConfigError, match=r"\[connectors.arm\] size_gib; expected no options for this kind"):
        parts("recompute", size_gib=1)


def test_native_on_a_gpu_is_vllms_own() -> None:
    made = parts("native", GPU, size_gib=1.5, eviction_policy="arc", offload_prompt_only=False)
    assert made.args == (
        "--kv-transfer-config",
        '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": '
        '{"cpu_bytes_to_use": 1610612736, "eviction_policy": "arc", "offload_prompt_only": false}}',
    )
    assert made.env == {}
    assert made.notes == ()


def test_native_on_the_cpu_engine_runs_our_spec() -> None:
    made = parts("native", cpu_bytes_to_use=10**6, link_latency_seconds=0.5)
    assert extra(made) == {
        "cpu_bytes_to_use": 1000000,
        "link_latency_seconds": 0.5,
        "spec_name": "KVOffloadHostSpec",
        "spec_module_path": "kvoffload_cpu_spec",
    }
    assert made.env["PYTHONPATH"].endswith("engine/inside")
    assert made.notes == ()


def test_tiering_names_the_tiering_spec() -> None:
    tiers = [{"type": "fs", "root_dir": "/x"}]
    assert extra(parts("tiering", size_gib=1, secondary_tiers=tiers))["spec_name"] == "KVOffloadTieringSpec"
    assert extra(parts("tiering", GPU, size_gib=1, secondary_tiers=tiers)) == {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 2**30,
        "secondary_tiers": tiers,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"size_gib; expected the size of the host tier: size_gib \(GiB\) or cpu_bytes_to_use \(bytes\)"),
        ({"size_gib": 0}, "size_gib: got 0; expected a number above 0"),
        ({"size_gib": "4"}, "size_gib: got '4'; expected a number above 0"),
        ({"size_gib": True}, "size_gib: got True"),
        ({"size_gib": float("nan")}, "size_gib: got nan"),
        ({"size_gib": float("inf")}, "size_gib: got inf"),
        ({"size_gib": 1, "cpu_bytes_to_use": 1}, r"size_gib \(GiB\) or cpu_bytes_to_use \(bytes\), not both"),
        ({"cpu_bytes_to_use": 1.5}, "cpu_bytes_to_use: got 1.5; expected a whole number of at least 1"),
        ({"sizegib": 1}, r"sizegib; expected one of .* \(did you mean 'size_gib'\?\); extra_config"),
        ({"size_gib": 1, "eviction_policy": "LRU"}, r"got 'LRU'; expected 'lru' or 'arc' \(did you mean 'lru'\?\)"),
        ({"size_gib": 1, "offload_prompt_only": "false"}, r"got 'false'; expected true or false \(not a string\)"),
        ({"size_gib": 1, "blocks_per_chunk": 2, "block_size": 256}, "blocks_per_chunk .* or block_size .*, not both"),
        ({"size_gib": 1, "blocks_per_chunk": 0}, "blocks_per_chunk: got 0; expected a whole number of at least 1"),
        ({"size_gib": 1, "link_bandwidth_bytes_per_second": 0}, "link_bandwidth_bytes_per_second: got 0"),
        ({"size_gib": 1, "extra_config": "x"}, "extra_config: got 'x'; expected a table"),
    ],
)
def test_native_refuses_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parts("native", **options)


def test_a_modelled_link_needs_the_cpu_backend() -> None:
    with pytest.raises(ConfigError, match="no modelled link here"):
        parts("native", GPU, size_gib=1, link_latency_seconds=1)


def test_tiering_refuses_by_name() -> None:
    with pytest.raises(ConfigError, match="a non-empty list of tables, each with a type"):
        parts("tiering", size_gib=1)
    with pytest.raises(ConfigError, match=r"secondary_tiers: got \{'root_dir': '/x'\}"):
        parts("tiering", size_gib=1, secondary_tiers=[{"root_dir": "/x"}])
    with pytest.raises(ConfigError, match="tiering refuses a threshold of 2 or more"):
        parts("tiering", size_gib=1, store_threshold=2, secondary_tiers=[{"type": "fs"}])


def test_extra_config_passes_any_key() -> None:
    made = parts("native", size_gib=1, extra_config={"max_tracker_size": 7, "cpu_bytes_to_use": "8G"})
    assert extra(made)["max_tracker_size"] == 7
    assert extra(made)["cpu_bytes_to_use"] == "8G"


def test_raw_passes_a_misspelt_key_verbatim() -> None:
    config = {"kv_connector": "OffloadingConnector", "kv_roll": "kv_both"}
    assert parts("raw", GPU, kv_transfer_config=config).kv_transfer_config == config
    assert parts("raw", GPU, kv_transfer_config=json.dumps(config)).kv_transfer_config == config
    with pytest.raises(ConfigError, match=r"kv_transfer_config: got '\{8G\}'; expected a table or a JSON object"):
        parts("raw", kv_transfer_config="{8G}")
    with pytest.raises(ConfigError, match="a table or a JSON object"):
        parts("raw", kv_transfer_config="[1]")


@pytest.mark.parametrize(
    ("given_spec", "ours"),
    [
        ({}, "KVOffloadHostSpec"),
        ({"spec_name": "CPUOffloadingSpec"}, "KVOffloadHostSpec"),
        ({"spec_name": "TieringOffloadingSpec"}, "KVOffloadTieringSpec"),
    ],
)
def test_raw_on_the_cpu_engine_says_that_the_spec_was_replaced(given_spec: dict[str, str], ours: str) -> None:
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": given_spec}
    made = parts("raw", kv_transfer_config=config)
    assert extra(made)["spec_name"] == ours
    assert len(made.notes) == 1
    assert f"was replaced by kvoffload_cpu_spec.{ours}" in made.notes[0]


@pytest.mark.parametrize(
    "config",
    [
        {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"},
        {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": "a string"},
        {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"spec_name": "Mine"}},
        {
            "kv_connector": "OffloadingConnector",
            "kv_connector_extra_config": {"spec_name": "CPUOffloadingSpec", "spec_module_path": "mine"},
        },
    ],
)
def test_raw_is_left_alone_where_our_spec_has_no_business(config: dict[str, Any]) -> None:
    made = parts("raw", kv_transfer_config=config)
    assert made.kv_transfer_config == config
    assert made.notes == ()
    assert "PYTHONPATH" not in made.env


def test_children_of_a_multi_connector_get_the_spec() -> None:
    child = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 1}}
    config = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [child, {"x": 1}]}}
    made = parts("raw", kv_transfer_config=config)
    assert extra(made)["connectors"][0]["kv_connector_extra_config"]["spec_name"] == "KVOffloadHostSpec"
    assert extra(made)["connectors"][1] == {"x": 1}
    assert made.env["PYTHONPATH"].endswith("inside")


def test_the_size_flag_gets_the_spec_too() -> None:
    connector = ConnectorConfig(name="arm", kind="raw", args=("--kv-offloading-size", "1"))
    made = connector_argv(connector, engine=CPU, server_version=None)
    assert extra(made)["spec_name"] == "KVOffloadHostSpec"
    assert made.args[-2:] == ("--kv-offloading-size", "1")
    lmcache = ConnectorConfig(
        name="arm", kind="raw", args=("--kv-offloading-size=1", "--kv-offloading-backend", "lmcache")
    )
    assert connector_argv(lmcache, engine=CPU, server_version=None).kv_transfer_config is None


def test_the_engine_id_is_ours_unless_the_user_has_one() -> None:
    def made(config: dict[str, Any]) -> Any:
        connector = ConnectorConfig(name="arm", kind="raw", options={"kv_transfer_config": config})
        result = connector_argv(connector, engine=GPU, server_version=None, engine_id="kvo-1").kv_transfer_config
        assert result is not None
        return result.get("engine_id")

    assert made({"kv_connector": "X"}) == "kvo-1"
    assert made({"kv_connector": "X", "engine_id": "mine"}) == "mine"
    assert made({}) is None


def test_validation_boots_nothing() -> None:
    validate_connector(ConnectorConfig(name="arm", kind="native", options={"size_gib": 1}), engine=CPU)
    with pytest.raises(ConfigError, match=r"expected one of .*native, raw, recompute, .*tiering"):
        validate_connector(ConnectorConfig(name="arm", kind="disk"), engine=CPU)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=8), json_values, max_size=4))
def test_a_raw_configuration_survives_the_command_line(config: dict[str, Any]) -> None:
    made = parts("raw", GPU, kv_transfer_config=config)
    assert json.loads(made.args[1]) == config
