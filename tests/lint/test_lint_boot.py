"""Linting the configuration that a test is about to boot."""

from __future__ import annotations

import pytest

from pytest_kvoffload.lint import lint_config, lint_launch
from pytest_kvoffload.lint.configuration import launch_of
from pytest_kvoffload.lint.model import Diagnostic
from pytest_kvoffload.records import ConnectorConfig, EngineConfig

NATIVE = (
    '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":%s}}'
)


def lint(
    *argv: str, env: dict[str, str] | None = None, version: str | None = "0.32.0", kind: str = "local"
) -> list[Diagnostic]:
    """Lint an arm called ``native``."""
    connector = ConnectorConfig(name="native", kind="raw")
    engine = EngineConfig(kind=kind)  # type: ignore[arg-type]
    return lint_config(connector, engine, argv, env or {}, version)


def test_a_good_boot_is_silent() -> None:
    assert lint("--model", "m", "--kv-transfer-config", NATIVE % "8589934592") == []


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("--model", "m", "--kv-transfer-config", NATIVE % "8"), "KVO701"),
        (("--model", "m", "--kv-offloading-backend", "native"), "KVO601"),
        (("--model", "m", "--kv-transfer-config", "{'a': 1}"), "KVO507"),
        (("--model", "m", "--kv-offloading-size=8", "--cpu-offload-gb=4"), "KVO101"),
        (("--model", "m", "--kv-offloading-size", "-5"), "KVO509"),
    ],
)
def test_mistakes_are_found(argv: tuple[str, ...], code: str) -> None:
    (finding,) = [d for d in lint(*argv) if d.severity == "error"]
    assert finding.code == code
    assert finding.location.path == "[connectors.native]"


def test_the_line_counts_the_words_of_the_command() -> None:
    (finding,) = lint("--model", "m", "--kv-transfer-config", NATIVE % "8")
    assert finding.location.line == 4


def test_variables_and_the_version_count() -> None:
    transfer = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
    env = {"PYTHONHASHSEED": "0", "LMCACHE_MAX_LOCAL_CPU_SIZE": "20Gi"}
    assert [d.code for d in lint("--model", "m", "--kv-transfer-config", transfer, env=env)] == ["KVO405"]
    assert [d.code for d in lint("--model", "m", "--device-memory-utilization", "0.9")] == []
    assert [d.code for d in lint("--model", "m", "--device-memory-utilization", "0.9", version="0.30.0")] == ["KVO809"]


def test_the_native_tier_on_the_cpu_backend_needs_a_spec_of_its_own() -> None:
    env = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    assert [d.code for d in lint("--model", "m", "--kv-offloading-size", "1", env=env)] == ["KVO808"]
    own = NATIVE.replace(
        '"cpu_bytes_to_use":%s', '"cpu_bytes_to_use":1073741824,"spec_name":"X","spec_module_path":"x"'
    )
    assert lint("--model", "m", "--kv-transfer-config", own, env=env) == []


def test_an_attached_server_may_have_variables_that_we_do_not_see() -> None:
    launch = launch_of(ConnectorConfig(name="a", kind="raw"), EngineConfig(kind="attach"), ["--model", "m"], {})
    assert not launch.env_complete
    assert lint_launch(launch) == []
