"""Our own configuration as the rules see it: each kind is the transfer configuration that vLLM will get."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from source_samples import document

from pytest_kvoffload.catalog.connector_options import KIND_OPTIONS
from pytest_kvoffload.cli import main
from pytest_kvoffload.config import load_config
from pytest_kvoffload.engine.connectors import KINDS, validate_connector
from pytest_kvoffload.errors import ConfigError
from pytest_kvoffload.lint.model import Node
from pytest_kvoffload.records import EngineConfig


def plain(node: Node) -> Any:
    """A node as plain data; what cannot be known is ``None``."""
    if node.kind == "object":
        return {member.key: plain(member.node) for member in node.members}
    if node.kind == "array":
        return [plain(item) for item in node.items]
    return node.value


def transfer(text: str, arm: str = "arm") -> Any:
    found = document("kvoffload.toml", textwrap.dedent(text))
    for launch in found.launches:
        if arm in [word.text for word in launch.words]:
            return plain(launch.configs[-1].node) if launch.configs else None
    raise AssertionError(f"no launch of {arm}")


def test_native_by_flag_is_what_vllm_makes_of_the_flag() -> None:
    made = transfer('[connectors.arm]\nkind = "native"\nvia = "flag"\nsize_gib = 2\neviction_policy = "arc"\n')
    assert made == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 2**31, "eviction_policy": "arc"},
    }


def test_simple_cpu_and_example_are_their_connectors() -> None:
    made = transfer('[connectors.arm]\nkind = "simple_cpu"\nsize_gib = 1\nlazy_offload = true\n')
    assert made["kv_connector"] == "SimpleCPUOffloadConnector"
    assert made["kv_connector_extra_config"] == {"cpu_bytes_to_use": 2**30, "lazy_offload": True}
    made = transfer('[connectors.arm]\nkind = "example"\nshared_storage_path = "/x"\nclear = true\n')
    assert made["kv_connector"] == "ExampleConnector"
    assert made["kv_connector_extra_config"] == {"shared_storage_path": "/x"}


def test_a_multi_connector_has_its_children_by_name_and_by_table() -> None:
    made = transfer(
        """
        [connectors.disk]
        kind = "tiering"
        size_gib = 1
        secondary_tiers = [{ type = "fs", root_dir = "/x" }]
        [connectors.arm]
        kind = "multi"
        connectors = ["disk", { kind = "example" }, "gone"]
        """
    )
    assert made["kv_connector"] == "MultiConnector"
    disk, example, gone = made["kv_connector_extra_config"]["connectors"]
    assert disk["kv_connector_extra_config"]["secondary_tiers"] == [{"type": "fs", "root_dir": "/x"}]
    assert disk["kv_connector_extra_config"]["spec_name"] == "TieringOffloadingSpec"
    assert example["kv_connector"] == "ExampleConnector"
    assert gone is None


@pytest.mark.parametrize("listed", ['["arm"]', '["other"]', "3", '[{ kind = "multi" }]', '[["x"]]'])
def test_a_multi_connector_that_makes_no_sense_is_read_without_end(listed: str) -> None:
    other = '[connectors.other]\nkind = "multi"\nconnectors = ["arm"]\n'
    made = transfer(f'{other}[connectors.arm]\nkind = "multi"\nconnectors = {listed}\n')
    children = made["kv_connector_extra_config"]["connectors"]
    assert all(child is None for child in children)


def test_the_modelled_link_is_no_key_of_vllms() -> None:
    made = transfer('[connectors.arm]\nkind = "native"\nsize_gib = 1\nlink_latency_seconds = 0.1\n')
    assert made["kv_connector_extra_config"] == {"cpu_bytes_to_use": 2**30}


def test_a_misspelt_tier_is_found_within_a_multi_connector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kvoffload.toml"
    path.write_text(
        '[connectors.arm]\nkind = "multi"\nconnectors = [\n'
        '  { kind = "native", size_gib = 1 },\n'
        '  { kind = "tiering", size_gib = 1, secondary_tiers = [{ type = "fs_python", root_dir = "/x" }] },\n]\n'
    )
    assert main(["lint", str(path)]) == 1
    assert "kvoffload.toml:5:" in (out := capsys.readouterr().out)
    assert "there is no secondary tier 'fs_python' (did you mean 'fs'?)" in out


def test_lmcache_in_its_own_server_is_the_mp_connector() -> None:
    extra = 'extra_config = { "lmcache.mp.heartbeat_interval" = 5 }'
    assert transfer(f'[connectors.arm]\nkind = "lmcache_mp"\nl1_size_gb = 1\n{extra}\n') == {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.heartbeat_interval": 5},
    }


def test_lmcache_in_process_is_read_as_its_environment() -> None:
    text = """
    [connectors.arm]
    kind = "lmcache_inprocess"
    max_local_cpu_size = 0.5
    local_cpu = false
    local_disk = true
    remote = "lm"
    config = { cache_policy = "LFU" }
    env = { LMCACHE_CHUNK_SIZE = "512" }
    """
    assert transfer(text)["kv_connector"] == "LMCacheConnectorV1"
    (launch,) = document("kvoffload.toml", textwrap.dedent(text)).launches
    assert {variable.name: variable.value.text for variable in launch.env} == {
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.5",
        "LMCACHE_LOCAL_CPU": "false",
        "LMCACHE_REMOTE_URL": "lm",
        "LMCACHE_CACHE_POLICY": "LFU",
        "LMCACHE_CHUNK_SIZE": "512",
    }


def test_a_size_that_lmcache_cannot_read_is_found_in_our_own_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kvoffload.toml"
    file.write_text('[connectors.arm]\nkind = "lmcache_inprocess"\nmax_local_cpu_size = "20Gi"\n')
    assert main(["lint", str(file)]) == 1
    assert "LMCACHE_MAX_LOCAL_CPU_SIZE is '20Gi': not a number" in capsys.readouterr().out


@pytest.mark.parametrize(("told", "published"), [("true", True), ("false", False)])
def test_kv_events_of_the_engine_are_an_events_configuration(told: str, published: bool) -> None:
    text = f"""
        [engine]
        kv_events = {told}
        [connectors.disk]
        kind = "tiering"
        size_gib = 1
        secondary_tiers = [{{ type = "fs", root_dir = "/kv", enable_kv_events = true }}]
        """
    (launch,) = document("kvoffload.toml", text).launches
    config = launch.config("kv-events-config")
    assert (config is not None) == published
    if config is not None:
        assert config.node.plain() == {"enable_kv_cache_events": True, "publisher": "zmq"}


MISSPELT = [
    ("native", "size_gb = 1", "size_gb", "size_gib"),
    ("native", "size_gib = 1\neviction_polcy = 'arc'", "eviction_polcy", "eviction_policy"),
    (
        "tiering",
        "size_gib = 1\nsecondary_tier = [{ type = 'fs', root_dir = '/x' }]",
        "secondary_tier",
        "secondary_tiers",
    ),
    ("simple_cpu", "size_gib = 1\nlazy_ofload = true", "lazy_ofload", "lazy_offload"),
    ("example", "shared_storage_pth = '/x'", "shared_storage_pth", "shared_storage_path"),
    ("lmcache_mp", "l1_size_gib = 1", "l1_size_gib", "l1_size_gb"),
    ("lmcache_inprocess", "max_local_cpu_sise = 1", "max_local_cpu_sise", "max_local_cpu_size"),
    ("multi", "connectors = ['other', 'other']\nconectors = []", "conectors", "connectors"),
    ("raw", "kv_transfer_confg = {}", "kv_transfer_confg", "kv_transfer_config"),
]


@pytest.mark.parametrize(
    ("kind", "options", "wrong", "meant"), MISSPELT, ids=[f"{row[0]}-{row[2]}" for row in MISSPELT]
)
def test_a_misspelt_option_is_refused_by_lint_as_by_a_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, options: str, wrong: str, meant: str
) -> None:
    file = tmp_path / "kvoffload.toml"
    file.write_text(
        f"[connectors.arm]\nkind = '{kind}'\n{options}\n[connectors.other]\nkind = 'native'\nsize_gib = 1\n"
    )
    assert main(["lint", str(file)]) == 1
    said = capsys.readouterr().out
    assert f"a connector of kind '{kind}' has no option '{wrong}' (did you mean '{meant}'?): it is refused" in said
    # That one mistake, and no other rule that says something else of it.
    assert set(re.findall(r"\[(KVO\d+) ", said)) == {"KVO318"}
    connector = load_config(file).connectors["arm"]
    with pytest.raises(ConfigError, match=rf"did you mean '{meant}'\?"):
        validate_connector(connector, engine=EngineConfig(kind="local"))


def test_an_option_far_from_any_is_an_error_with_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kvoffload.toml"
    file.write_text("[connectors.arm]\nkind = 'example'\nzzz = 1\n")
    assert main(["lint", str(file)]) == 1
    said = capsys.readouterr().out
    assert "kvoffload.toml:3:1: error: a connector of kind 'example' has no option 'zzz': it is refused" in said
    assert "use one of clear, extra_config, shared_storage_path" in said


def test_a_child_table_takes_its_kinds_options_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kvoffload.toml"
    file.write_text(
        "[connectors.arm]\nkind = 'multi'\nconnectors = [\n"
        "  { kind = 'native', size_gib = 1, args = ['--x'] },\n  { kind = 'exmple' },\n]\n"
    )
    assert main(["lint", str(file)]) == 1
    said = capsys.readouterr().out
    assert "kvoffload.toml:4:36: error: a connector of kind 'native' has no option 'args': it is refused" in said
    assert "kvoffload.toml:5:13: error: there is no kind 'exmple' (did you mean 'example'?)" in said


@pytest.mark.parametrize(("name", "head"), [("kvoffload.toml", ""), ("pyproject.toml", "tool.kvoffload.")])
def test_a_file_that_is_ours_by_its_name_has_no_other_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, head: str
) -> None:
    file = tmp_path / name
    file.write_text(f"[{head}connectors.arm]\nkind = 'natve'\n[{head}connectors.other]\nsize_gib = 1\n")
    assert main(["lint", str(file)]) == 1
    said = capsys.readouterr().out
    assert "there is no kind 'natve' (did you mean 'native'?)" in said
    assert "this connector has no kind: it is refused" in said


def test_connectors_of_another_program_are_not_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text("[connectors.source]\nkind = 'kafka'\ntopic = 'x'\n[connectors.sink]\ntopic = 'y'\n")
    assert main(["lint", str(file)]) == 0
    assert "error" not in capsys.readouterr().out.replace("0 errors", "")


@pytest.mark.parametrize("kind", sorted(KIND_OPTIONS))
def test_lint_and_launch_know_the_same_kinds_and_options(kind: str) -> None:
    assert KINDS[kind].options == KIND_OPTIONS[kind].names
    assert sorted(KINDS) == sorted(KIND_OPTIONS)
