"""The linter's data: complete against itself, and the scripts that write it from sources."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.catalog import regenerate_lint_lmcache, regenerate_lint_vllm

VERSIONS = [str(v) for v in catalog.versions("vllm")]
OWNERS = {
    "OffloadingConnector": ("offloading/", "v1/kv_offload/"),
    "SimpleCPUOffloadConnector": ("simple_cpu_offload_connector",),
    "ExampleConnector": ("/example_connector",),
    "DecodeBenchConnector": ("decode_bench",),
    "ExampleHiddenStatesConnector": ("example_hidden_states",),
}


def data(version: str) -> dict[str, dict[str, list[str]]]:
    """Return the generated data of one version."""
    path = Path(catalog.__file__).parent / "data" / f"vllm-{version}.json"
    loaded: dict[str, dict[str, list[str]]] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def test_all_versions_are_there() -> None:
    assert VERSIONS == ["0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_registered_connector_is_described(version: str) -> None:
    assert catalog.vllm_connectors(version) <= set(catalog.curated()["connectors"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OWNERS)
def test_every_key_that_a_closed_connector_reads_is_described(name: str, version: str) -> None:
    described = set(catalog.connector(name)["extra"])
    for path, keys in data(version)["extra_keys"].items():
        if any(part in path for part in OWNERS[name]):
            assert set(keys) <= described, f"{path} of vLLM {version} reads keys that connectors.json lacks"


def test_history_is_told_by_the_data() -> None:
    assert "HiSparseConnector" not in catalog.vllm_connectors("0.29.0")
    assert "HiSparseConnector" in catalog.vllm_connectors("0.30.0")
    assert "kv_rank" in catalog.vllm_transfer_keys("0.31.0")
    assert "kv_rank" not in catalog.vllm_transfer_keys("0.32.0")
    assert "--device-memory-utilization" not in catalog.vllm_flags("0.30.0")
    assert "--device-memory-utilization" in catalog.vllm_flags("0.31.5"), "the newest data not above the version counts"
    assert "--swap-space" not in catalog.vllm_flags()
    assert catalog.lmcache_keys()["max_local_cpu_size"] == "float"


def test_the_vllm_script_reads_sources_without_importing(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    files = {
        "engine/arg_utils.py": 'raise SystemExit("imported")\ngroup.add_argument("--a-flag", "-a", **x["a"])\n',
        "entrypoints/openai/cli_args.py": "class FrontendArgs:\n    host_name: str = ''\n",
        "distributed/kv_transfer/kv_connector/factory.py": "F.register_connector('XConnector', 'm', 'X')\n",
        "distributed/kv_transfer/kv_connector/v1/x.py": "a = self.extra_config.get('one')\nb = extra_config['two']\n",
        "config/kv_transfer.py": "class KVTransferConfig:\n    kv_connector: str\n    kv_role: str\n",
        "v1/kv_offload/tiering/factory.py": "S.register_tier('fs', 'm', 'C')\n",
        "envs.py": "environment_variables = {'VLLM_ONE': lambda: 1}\n",
    }
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, "-m", regenerate_lint_vllm.__name__, "--sources", str(tmp_path), "--version", "9.9.9"]
    done = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "vllm-9.9.9.json").read_text()) == {
        "version": "9.9.9",
        "flags": ["--a-flag", "--host-name"],
        "connectors": ["XConnector"],
        "transfer_keys": ["kv_connector", "kv_role"],
        "extra_keys": {"distributed/kv_transfer/kv_connector/v1/x.py": ["one", "two"]},
        "tiers": ["fs"],
        "environment": ["VLLM_ONE"],
    }


def test_the_lmcache_script_reads_sources_without_importing(tmp_path: Path) -> None:
    package = tmp_path / "lmcache" / "v1"
    package.mkdir(parents=True)
    (package / "config.py").write_text(
        "_CONFIG_ALIASES = {'old': 'new'}\n"
        "_CONFIG_DEFINITIONS: dict = {'new': {'type': Optional[int], 'default': 1}}\n"
        "x = os.environ.get('LMCACHE_NAME')\ny = 'lmcache.mp.port'\n"
    )
    (package / "multiprocess").mkdir()
    (package / "multiprocess" / "config.py").write_text("parser.add_argument('--l1-size-gb')\n")
    root = tmp_path / "lmcache"
    assert regenerate_lint_lmcache.config_keys(root) == {"new": "Optional[int]"}
    assert regenerate_lint_lmcache.aliases(root) == {"old": "new"}
    assert regenerate_lint_lmcache.constants(root, regenerate_lint_lmcache.ENV_NAME) == ["LMCACHE_NAME"]
    assert regenerate_lint_lmcache.constants(root, regenerate_lint_lmcache.MP_KEY) == ["lmcache.mp.port"]
    assert regenerate_lint_lmcache.server_flags(root) == ["--l1-size-gb"]
