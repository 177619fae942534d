"""Our own configuration as the rules see it: each kind is the transfer configuration that vLLM will get."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from source_samples import document

from pytest_kvoffload.cli import main
from pytest_kvoffload.lint.model import Node


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
