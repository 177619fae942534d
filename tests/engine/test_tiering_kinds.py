"""The kinds of vLLM's own tiers: what each hands to the launch, and what it refuses by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.config import build_config
from pytest_kvoffload.engine.connectors import LaunchContext, LaunchParts, connector_argv
from pytest_kvoffload.engine.connectors import tiers as tiers_module
from pytest_kvoffload.errors import ConfigError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, TierClear

CPU, GPU = EngineConfig(kind="cpu"), EngineConfig(kind="local")
STORE = {
    "bucket": "kv",
    "endpoint_override": "127.0.0.1:9000",
    "access_key": "AKIAPLANTED",
    "secret_key": "hunter2",
    "region": "us-east-1",
}
BARE = {key: value for key, value in STORE.items() if key not in ("access_key", "secret_key")}


@pytest.fixture(autouse=True)
def _no_keys_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "NIXL_TELEMETRY_ENABLE"):
        monkeypatch.delenv(name, raising=False)


def parts(
    kind: str,
    engine: EngineConfig = CPU,
    *,
    version: str | None = "0.32.0",
    env: dict[str, str] | None = None,
    scratch: Path = Path("scratch"),
    **options: Any,
) -> LaunchParts:
    return connector_argv(
        ConnectorConfig(name="arm", kind=kind, options=options, env=env or {}),
        engine=engine,
        server_version=version,
        context=LaunchContext(cpu_platform=True, server_version=version, scratch=scratch, port=lambda name: 4711),
    )


def tiers(*listed: dict[str, Any], **more: Any) -> LaunchParts:
    return parts("tiering", size_gib=1, secondary_tiers=list(listed), **more)


def config(made: LaunchParts) -> dict[str, Any]:
    assert made.kv_transfer_config is not None
    return dict(made.kv_transfer_config)


def extra(made: LaunchParts) -> dict[str, Any]:
    found: dict[str, Any] = config(made)["kv_connector_extra_config"]
    return found


# ------------------------------------------------------------------------------------------------------- tiers
def test_keys_of_a_store_travel_in_the_environment_because_vllm_prints_its_configuration() -> None:
    made = tiers({"type": "obj", "store_config": {**STORE, "session_token": "t0ken"}, "prefix": "run-1"})
    assert extra(made)["secondary_tiers"] == [{"type": "obj", "store_config": BARE, "prefix": "run-1"}]
    assert made.env["AWS_ACCESS_KEY_ID"] == "AKIAPLANTED"
    assert made.env["AWS_SECRET_ACCESS_KEY"] == "hunter2"
    assert made.env["AWS_SESSION_TOKEN"] == "t0ken"
    assert made.env["AWS_EC2_METADATA_DISABLED"] == "true"
    assert made.packages == ("nixl",)
    assert "hunter2" not in " ".join(made.args)
    assert any("vLLM would print them in its log" in note for note in made.notes)


def test_without_keys_the_sdk_looks_for_them_itself() -> None:
    made = tiers({"type": "obj", "store_config": BARE})
    assert not [name for name in made.env if name.startswith("AWS_")]
    theirs = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/kv"}
    assert theirs.items() <= tiers({"type": "obj", "store_config": BARE}, env=theirs).env.items()


def test_nixl_gets_its_telemetry_unless_the_user_decides() -> None:
    made = tiers({"type": "obj", "store_config": BARE})
    assert made.env["NIXL_TELEMETRY_ENABLE"] == "y"
    assert any("dies at the first finished transfer" in note for note in made.notes)
    kept = tiers({"type": "obj", "store_config": BARE}, env={"NIXL_TELEMETRY_ENABLE": "n"})
    assert kept.env["NIXL_TELEMETRY_ENABLE"] == "n"
    assert not any("TELEMETRY" in note for note in kept.notes)
    assert tiers({"type": "fs", "root_dir": "/x"}).packages == ()


def test_several_tiers_keep_their_order_and_share_their_keys() -> None:
    one, two = {"type": "obj", "store_config": STORE, "prefix": "a"}, {"type": "obj", "store_config": STORE}
    made = tiers({"type": "fs", "root_dir": "/x", "n_read_threads": 2}, one, two)
    assert [tier["type"] for tier in extra(made)["secondary_tiers"]] == ["fs", "obj", "obj"]
    assert sum("environment" in note for note in made.notes) == 1
    other = {"type": "obj", "store_config": {**STORE, "secret_key": "other"}}
    with pytest.raises(ConfigError, match="the same keys for every object tier") as caught:
        tiers(one, other)
    assert "hunter2" not in str(caught.value)


def test_a_p2p_tier_gets_a_port_of_its_own() -> None:
    assert extra(tiers({"type": "p2p"}))["secondary_tiers"] == [{"type": "p2p", "port": 4711}]
    assert extra(tiers({"type": "p2p", "port": 5710}))["secondary_tiers"] == [{"type": "p2p", "port": 5710}]


def test_a_tier_of_the_users_own_class_is_passed_on() -> None:
    own = {"type": "MyTier", "module_path": "my.tiers", "anything": 1}
    assert extra(tiers(own))["secondary_tiers"] == [own]
    with pytest.raises(ConfigError, match=r"module_path; expected vLLM 0.28 or later: this server is 0.27.1"):
        tiers(own, version="0.27.1")


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        (
            {"type": "fs_python", "root_dir": "/x"},
            r"\[connectors.arm.secondary_tiers\[0\]\] type: got 'fs_python'.*'fs'",
        ),
        ({"type": "s3", "store_config": BARE}, r"did you mean 'obj'"),
        ({"type": "ojb", "store_config": BARE}, r"did you mean 'obj'"),
        ({"type": "tape"}, r"one of example, fs, kvcr, obj, p2p, or a class of yours with module_path"),
        ({"type": "fs"}, r"root_dir; expected a value: a tier of type fs needs it"),
        ({"type": "fs", "root": "/x"}, r"\] root; expected one of .*did you mean 'root_dir'"),
        ({"type": "fs", "root_dir": 3}, r"root_dir: got 3; expected a non-empty string"),
        ({"type": "fs", "root_dir": "/x", "n_read_threads": 0}, r"n_read_threads: got 0; expected a whole number"),
        (
            {"type": "fs", "root_dir": "/x", "enable_kv_events": "false"},
            r"enable_kv_events: got 'false'; expected true",
        ),
        ({"type": "obj"}, r"store_config; expected a value: a tier of type obj needs it"),
        ({"type": "obj", "store_config": "x"}, r"store_config: got 'x'; expected a table"),
        ({"type": "obj", "store_config": {"bucket": "b"}}, r"store_config\] endpoint_override; expected a value"),
        ({"type": "obj", "store_config": {**BARE, "endpoint": "x"}}, r"did you mean 'endpoint_override'"),
        ({"type": "obj", "store_config": {**BARE, "scheme": "s3"}}, r"scheme: got 's3'; expected 'http' or 'https'"),
        ({"type": "obj", "store_config": {**BARE, "ca_bundle": "/ca"}}, r"ca_bundle; expected scheme = 'https'"),
        (
            {"type": "obj", "store_config": {**BARE, "access_key": "a"}},
            r"secret_key; expected access_key and secret_key",
        ),
        (
            {"type": "obj", "store_config": {**BARE, "session_token": "a"}},
            r"access_key; expected access_key and secret",
        ),
        ({"type": "p2p", "hots": "x"}, r"hots; expected one of .*did you mean 'host'"),
        ({"type": "p2p", "backends": "UCX"}, r"backends: got 'UCX'; expected a list"),
    ],
)
def test_a_tier_that_cannot_be_meant_is_refused(tier: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiers(tier)


@pytest.mark.parametrize(
    ("tier", "version", "message"),
    [
        ({"type": "kvcr"}, "0.29.0", r"type; expected vLLM 0.30 or later: this server is 0.29.0"),
        ({"type": "fs", "root_dir": "/x", "backpressure": {}}, "0.30.0", r"backpressure; expected vLLM 0.31 or later"),
        ({"type": "p2p", "unbound_store_timeout_s": 1.5}, "0.29.0", r"expected vLLM 0.30 or later"),
    ],
)
def test_what_a_version_does_not_know_is_refused_for_it_only(tier: dict[str, Any], version: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiers(tier, version=version)
    tiers(tier, version="0.32.0")
    tiers(tier, version=None)


def test_keys_in_two_places_are_refused_and_neither_is_shown() -> None:
    with pytest.raises(ConfigError, match="keys here or in the environment") as caught:
        tiers({"type": "obj", "store_config": STORE}, env={"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "x"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"got \{'store_config': \{.*'secret_key': '\*\*\*'") as caught:
        tiers({"store_config": STORE})
    assert "hunter2" not in str(caught.value)


def bundle_of(made: LaunchParts) -> str | None:
    found: dict[str, Any] = extra(made)["secondary_tiers"][0]["store_config"]
    return found.get("ca_bundle")


def test_tls_gets_a_bundle_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    system, nixls = tmp_path / "system.pem", tmp_path / "nixl.pem"
    system.write_text("trusted")
    monkeypatch.setattr(tiers_module, "NIXL_BUNDLE", nixls)
    monkeypatch.setattr(tiers_module, "SYSTEM_BUNDLES", (tmp_path / "none.pem", system))
    secure = {"type": "obj", "store_config": {**BARE, "scheme": "https"}}
    made = tiers(secure)
    assert bundle_of(made) == str(system)
    assert any(f"ca_bundle = {str(system)!r} was added" in note and str(nixls) in note for note in made.notes)
    assert bundle_of(tiers(secure, env={"AWS_CA_BUNDLE": "/mine.pem"})) == "/mine.pem"
    named = {"type": "obj", "store_config": {**BARE, "scheme": "https", "ca_bundle": "/own.pem"}}
    assert bundle_of(tiers(named, env={"AWS_CA_BUNDLE": "/mine.pem"})) == "/own.pem"
    assert bundle_of(tiers({"type": "obj", "store_config": BARE}, env={"AWS_CA_BUNDLE": "/mine.pem"})) is None
    nixls.write_text("trusted")
    assert bundle_of(tiers(secure)) is None


# ----------------------------------------------------------------------------------------------------- by flag
def test_native_by_flag_leaves_the_rest_to_vllm() -> None:
    made = parts("native", GPU, size_gib=1.5, via="flag")
    assert made.args == ("--kv-offloading-size", "1.5")
    assert made.kv_transfer_config is None
    made = parts("native", GPU, size_gib=2, via="flag", eviction_policy="arc")
    assert made.args[:2] == ("--kv-offloading-size", "2.0")
    assert extra(made) == {"eviction_policy": "arc"}
    on_cpu = parts("native", cpu_bytes_to_use=2**28, via="flag")
    assert on_cpu.args[:2] == ("--kv-offloading-size", "0.25")
    assert extra(on_cpu) == {"spec_name": "KVOffloadHostSpec", "spec_module_path": "kvoffload_cpu_spec"}


def test_native_by_another_way_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"via: got 'flags'; expected 'config' .* or 'flag' .*did you mean 'flag'"):
        parts("native", size_gib=1, via="flags")
    with pytest.raises(ConfigError, match=r"tiering|expected one of"):
        parts("tiering", size_gib=1, via="flag", secondary_tiers=[{"type": "fs", "root_dir": "/x"}])


# -------------------------------------------------------------------------------------------------- simple_cpu
def simple(**options: Any) -> LaunchParts:
    connector = ConnectorConfig(name="arm", kind="simple_cpu", options=options)
    return connector_argv(connector, engine=GPU, server_version=options.pop("version", "0.33.0"), cpu_platform=False)


def test_simple_cpu_on_a_gpu() -> None:
    made = simple(size_gib=4, lazy_offload=True)
    assert config(made)["kv_connector"] == "SimpleCPUOffloadConnector"
    assert extra(made) == {"cpu_bytes_to_use": 2**32, "lazy_offload": True}
    made = simple(cpu_bytes_to_use_per_rank=7, kv_offload_backend="disk", disk_path="/d", disk_buffer_slots=2)
    assert extra(made) == {
        "cpu_bytes_to_use_per_rank": 7,
        "kv_offload_backend": "disk",
        "disk_path": "/d",
        "disk_buffer_slots": 2,
    }


def test_simple_cpu_refuses_the_cpu_backend_by_name() -> None:
    with pytest.raises(ConfigError, match=r"kind: got 'simple_cpu'; expected an engine on a GPU: .*dies on vLLM's CPU"):
        parts("simple_cpu", size_gib=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the size of the host tier"),
        ({"size_gib": 1, "cpu_bytes_to_use_per_rank": 1}, "a size for each rank or one for all"),
        ({"size_gib": 1, "lazy_offload": "false"}, r"true or false \(not a string\)"),
        ({"size_gib": 1, "disk_path": "/x"}, "kv_offload_backend = 'disk' beside it: vLLM ignores it otherwise"),
        ({"size_gib": 1, "kv_offload_backend": "disk"}, "disk_path; expected a directory"),
        ({"size_gib": 1, "kv_offload_backend": "dsk"}, "did you mean 'disk'"),
        ({"size_gib": 1, "lazy_ofload": True}, "did you mean 'lazy_offload'"),
    ],
)
def test_simple_cpu_refuses_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simple(**options)


def test_simple_cpu_knows_its_versions() -> None:
    connector = ConnectorConfig(name="arm", kind="simple_cpu", options={"size_gib": 1, "num_cpu_blocks": 9})
    with pytest.raises(ConfigError, match=r"num_cpu_blocks; expected vLLM 0.33 or later, which reads it"):
        connector_argv(connector, engine=GPU, server_version="0.32.0", cpu_platform=False)


# ----------------------------------------------------------------------------------------------------- example
def test_example_gets_a_directory_of_the_boot_and_one_step_for_a_prompt(tmp_path: Path) -> None:
    made = parts("example", scratch=tmp_path, engine=EngineConfig(kind="cpu", max_model_len=4096))
    assert extra(made) == {"shared_storage_path": str(tmp_path / "example")}
    assert made.args[:2] == ("--max-num-batched-tokens", "4096")
    assert made.salted is False
    assert made.clears == (TierClear(action="empty_directory", target=str(tmp_path / "example")),)
    assert any("--max-num-batched-tokens 4096 was added" in note for note in made.notes)


def test_example_clears_a_directory_of_the_users_only_when_told() -> None:
    assert parts("example", shared_storage_path="/shared").clears == ()
    assert parts("example", shared_storage_path="/t", clear=True).clears == (
        TierClear(action="empty_directory", target="/t"),
    )
    with pytest.raises(ConfigError, match="clear; expected shared_storage_path beside it"):
        parts("example", clear=False)


def test_example_refuses_steps_shorter_than_a_prompt() -> None:
    short = EngineConfig(kind="cpu", max_model_len=8192, args=("--max-num-batched-tokens=2048",))
    with pytest.raises(
        ConfigError, match=r"at least max_model_len \(8192\).*saves a prompt that is computed in pieces"
    ):
        parts("example", short)
    enough = EngineConfig(kind="cpu", max_model_len=8192, args=("--max-num-batched-tokens", "9000"))
    assert "--max-num-batched-tokens" not in parts("example", enough).args


# ------------------------------------------------------------------------------------------------------- multi
def test_multi_joins_what_its_children_need(tmp_path: Path) -> None:
    children = [
        {"kind": "tiering", "size_gib": 1, "secondary_tiers": [{"type": "obj", "store_config": STORE}]},
        {"kind": "example"},
    ]
    made = parts("multi", scratch=tmp_path, connectors=children)
    assert config(made)["kv_connector"] == "MultiConnector"
    first, second = extra(made)["connectors"]
    assert first["kv_connector_extra_config"]["spec_name"] == "KVOffloadTieringSpec", "children run our spec too"
    assert second["kv_connector"] == "ExampleConnector"
    assert made.packages == ("nixl",)
    assert made.env["AWS_SECRET_ACCESS_KEY"] == "hunter2"
    assert "PYTHONPATH" in made.env
    assert made.salted is False
    assert [clear.target for clear in made.clears] == [str(tmp_path / "example")]
    assert "--max-num-batched-tokens" in made.args
    assert json.loads(made.args[made.args.index("--kv-transfer-config") + 1]) == made.kv_transfer_config


def test_multi_that_holds_what_cannot_be_cleared_cannot_be_cleared() -> None:
    made = parts("multi", connectors=[{"kind": "example"}, {"kind": "example", "shared_storage_path": "/shared"}])
    assert made.clears == ()


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([{"kind": "example"}], "a list of at least two"),
        (["native", "disk"], r"connectors: got 'native'; expected names of connectors of the same configuration file"),
        (
            [{"kind": "recompute"}, {"kind": "example"}],
            r"connectors\[0\]\] kind: got 'recompute'; expected a connector",
        ),
        ([{"kind": "exampel"}, {"kind": "example"}], r"did you mean 'example'"),
        ([{"kind": "native"}, {"kind": "example"}], r"\[connectors.arm.connectors\[0\]\] size_gib; expected the size"),
        ([{"kind": "native", "size_gib": 1, "via": "flag"}, {"kind": "example"}], "the flag replaces the whole Multi"),
        ([{"kind": "multi"}, {"kind": "example"}], "a MultiConnector does not nest"),
        ([{}, {"kind": "example"}], "tables, each with a kind"),
    ],
)
def test_multi_refuses_by_name(children: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parts("multi", connectors=children)


def test_a_file_may_name_the_children_and_their_surroundings_come_along() -> None:
    made = build_config(
        {
            "connectors": {
                "disk": {"kind": "example", "args": ["--seed", "3"], "env": {"A": "1", "B": "2"}},
                "both": {
                    "kind": "multi",
                    "connectors": ["disk", {"kind": "native", "size_gib": 1}],
                    "env": {"B": "3"},
                    "args": ["--seed", "4"],
                },
            }
        },
        source="kvoffload.toml",
    )
    both = made.connectors["both"]
    assert both.options["connectors"] == [{"kind": "example"}, {"kind": "native", "size_gib": 1}]
    assert both.env == {"A": "1", "B": "3"}
    assert both.args == ("--seed", "3", "--seed", "4")
    with pytest.raises(ConfigError, match=r"\[connectors.both\] connectors: got 'dsk'; .*did you mean 'disk'"):
        build_config(
            {"connectors": {"disk": {"kind": "example"}, "both": {"kind": "multi", "connectors": ["dsk", "disk"]}}},
            source=None,
        )


def test_children_with_different_keys_of_a_store_are_refused_and_no_key_is_shown() -> None:
    def child(key: str) -> dict[str, Any]:
        store = {"bucket": "b", "endpoint_override": "h:1", "access_key": f"id-{key}", "secret_key": f"secret-{key}"}
        return {"kind": "tiering", "size_gib": 1, "secondary_tiers": [{"type": "obj", "store_config": store}]}

    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY") as caught:
        parts("multi", connectors=[child("one"), child("two")])
    assert "id-" not in str(caught.value)
    assert "secret-" not in str(caught.value)
    same = parts("multi", connectors=[child("one"), child("one")])
    assert same.env["AWS_ACCESS_KEY_ID"] == "id-one"


@pytest.mark.parametrize("where", ["/", str(Path.home()), ".", ".."])
def test_example_never_empties_a_home_or_what_lies_around_it(where: str) -> None:
    with pytest.raises(ConfigError, match="a directory that holds nothing else"):
        parts("example", shared_storage_path=where, clear=True)
    assert parts("example", shared_storage_path=where).clears == ()


@pytest.mark.parametrize(
    "words", [("--kv-transfer-config", "{}"), ("--kv-transfer-config={}",), ("--kv-transfer-config.kv_role", "x")]
)
@pytest.mark.parametrize("kind", ["native", "raw"])
def test_a_second_transfer_configuration_in_args_is_refused(words: tuple[str, ...], kind: str) -> None:
    options = (
        {"size_gib": 1} if kind == "native" else {"kv_transfer_config": {"kv_connector": "X", "kv_role": "kv_both"}}
    )
    with pytest.raises(ConfigError, match="no --kv-transfer-config in args"):
        connector_argv(
            ConnectorConfig(name="arm", kind=kind, options=options, args=words),
            engine=EngineConfig(kind="cpu"),
            server_version="0.32.0",
        )
    with pytest.raises(ConfigError, match="no --kv-transfer-config in args"):
        connector_argv(
            ConnectorConfig(name="arm", kind=kind, options=options),
            engine=EngineConfig(kind="cpu", args=words),
            server_version="0.32.0",
        )
    # Without one of its own a connector leaves it to the arguments.
    free = ConnectorConfig(name="arm", kind="raw", args=words)
    assert connector_argv(free, engine=EngineConfig(kind="cpu"), server_version="0.32.0").args == words


@pytest.mark.parametrize("type_", ["obj", "p2p"])
def test_raw_tiers_over_nixl_and_its_connector_get_nixl(type_: str) -> None:
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1, "secondary_tiers": [{"type": type_}]}
    tiered = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    assert parts("raw", kv_transfer_config=tiered).packages == ("nixl",)
    both = {"connectors": [tiered, {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}]}
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": both}
    assert parts("raw", kv_transfer_config=multi).packages == ("lmcache", "nixl")
    assert parts("raw", kv_transfer_config={"kv_connector": "NixlConnector"}).packages == ("nixl",)
    extra["secondary_tiers"] = [{"type": "fs", "root_dir": "/x"}]
    assert parts("raw", kv_transfer_config=tiered).packages == ()
