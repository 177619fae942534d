"""``kvoffload init``: what it writes can be linted, loaded and collected, and it never overwrites."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pytest_kvoffload.cli import main
from pytest_kvoffload.config import load_config
from pytest_kvoffload.engine import validate_connector

TRANSFER = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": %s}'
SERVE = """#!/bin/bash
export VLLM_LOGGING_LEVEL=INFO
export HF_TOKEN=hf_abcdef
NOT_EXPORTED=1
vllm serve org/model --host 0.0.0.0 --port 8000 --max-model-len=16384 --enable-prefix-caching \\
  --api-key sk-1 --kv-transfer-config '{transfer}'
"""


class Terminal(io.StringIO):
    """A standard input that is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def init(directory: Path, *words: str) -> int:
    return main(["init", "--directory", str(directory), *words])


def serve(tmp_path: Path, text: str) -> str:
    path = tmp_path / "serve.sh"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("words", "arm"),
    [
        (["--yes", "--workflow"], "native"),
        (["--yes", "--connector", "tiering", "--engine", "local"], "tiering"),
        (["--yes", "--python", "/opt/v/bin/python", "--model", 'a "quoted" \\ model'], "native"),
        (["--from", "launch"], "deployed"),
    ],
)
def test_what_is_written_is_linted_loaded_and_collected(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], words: list[str], arm: str
) -> None:
    launch = pytester.path / "elsewhere"
    launch.mkdir()
    script = serve(launch, SERVE.format(transfer=TRANSFER % '{"cpu_bytes_to_use": 34359738368}'))
    words = [script if word == "launch" else word for word in words]
    target = pytester.path / "new"
    assert init(target, *words) == 0
    wrote = [line.removeprefix("wrote ") for line in capsys.readouterr().out.splitlines() if line.startswith("wrote ")]
    assert all(Path(path).is_file() for path in wrote)
    assert len(wrote) == (3 if "--workflow" in words else 2)
    config = load_config(target / "kvoffload.toml")
    assert list(config.connectors) == ["control", arm]
    for connector in config.connectors.values():
        validate_connector(connector, engine=config.engine)
    assert main(["lint", str(target)]) == 0
    assert "no findings" in capsys.readouterr().out
    result = pytester.runpytest_subprocess("--collect-only", "--rootdir", str(target), str(target / "tests"))
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*3 tests collected*"])


def test_a_launch_is_carried_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transfer = TRANSFER % '{"cpu_bytes_to_use": 34359738368, "spec_name": null}'
    assert init(tmp_path / "n", "--from", serve(tmp_path, SERVE.format(transfer=transfer))) == 0
    config = load_config(tmp_path / "n" / "kvoffload.toml")
    assert config.model.path == "org/model"
    assert config.engine.kind == "local"
    assert config.engine.args == ("--max-model-len=16384", "--enable-prefix-caching")
    assert config.engine.env == {"VLLM_LOGGING_LEVEL": "INFO"}
    connector = config.connectors["deployed"]
    assert connector.kind == "raw"
    assert '"spec_name": null' in connector.options["kv_transfer_config"]
    out = capsys.readouterr().out
    assert "not carried over: --port: a test binds the local host and a free port" in out
    assert "not carried over: --api-key: a secret" in out
    assert "not carried over: HF_TOKEN: a secret" in out
    written = (tmp_path / "n" / "kvoffload.toml").read_text()
    assert "hf_abcdef" not in written
    assert "sk-1" not in written


def test_the_size_flag_becomes_a_native_connector(tmp_path: Path) -> None:
    script = serve(tmp_path, "vllm serve org/model --kv-offloading-size 12.5\n")
    assert init(tmp_path / "n", "--from", script) == 0
    connector = load_config(tmp_path / "n" / "kvoffload.toml").connectors["deployed"]
    assert connector.kind == "native"
    assert connector.options == {"size_gib": 12.5}


def test_another_backend_stays_in_the_arguments(tmp_path: Path) -> None:
    script = serve(
        tmp_path,
        "export LMCACHE_CHUNK_SIZE=256\n"
        "vllm serve org/model --kv-offloading-size 4 --kv-offloading-backend lmcache --seed 1\n",
    )
    assert init(tmp_path / "n", "--from", script) == 0
    config = load_config(tmp_path / "n" / "kvoffload.toml")
    connector = config.connectors["deployed"]
    assert connector.args == ("--kv-offloading-size", "4", "--kv-offloading-backend", "lmcache")
    assert connector.env == {"LMCACHE_CHUNK_SIZE": "256"}
    assert config.engine.args == ("--seed", "1")


def test_a_launch_without_a_tier_gets_the_native_one(tmp_path: Path) -> None:
    assert init(tmp_path / "n", "--from", serve(tmp_path, "vllm serve org/model\n")) == 0
    assert load_config(tmp_path / "n" / "kvoffload.toml").connectors["native"].kind == "native"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('vllm serve "$MODEL"\n', "line 1: the model"),
        ('vllm serve org/model "$@"\n', "only known when"),
        ("vllm serve org/model --seed $SEED\n", "line 1: the value of --seed"),
        ("vllm serve org/model --kv-offloading-size $SIZE\n", "the value of --kv-offloading-size"),
        ("vllm serve org/model --kv-offloading-size big\n", "got 'big'; expected a number of GiB"),
        ("vllm serve org/a\nvllm serve org/b\n", "found 2 launches (lines 1, 2); expected a file with one"),
        ("echo hello\n", "found no launch of vLLM"),
        ("vllm serve org/model --kv-transfer-config '{'\n", "line 1: --kv-transfer-config: "),
    ],
)
def test_what_is_not_known_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, message: str
) -> None:
    assert init(tmp_path / "n", "--from", serve(tmp_path, script)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("name", ["kvoffload.toml", "tests/test_offload.py", ".github/workflows/kvoffload.yml"])
def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    assert init(tmp_path, "--yes", "--workflow") == 2
    assert f"{path} exists; nothing was written" in capsys.readouterr().err
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]
    assert path.read_text() == "mine"


def test_a_section_in_pyproject_is_not_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kvoffload.engine]\nkind = 'cpu'\n")
    assert init(tmp_path, "--yes") == 2
    assert "has [tool.kvoffload]; nothing was written" in capsys.readouterr().err


def test_a_tier_that_the_launch_has_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = serve(tmp_path, "vllm serve org/model --kv-offloading-size 4\n")
    assert init(tmp_path / "n", "--from", script, "--connector", "native") == 2
    assert "configures a tier already" in capsys.readouterr().err


def test_questions_are_asked_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("gpu\nlocal\n/opt/vllm/bin/python\norg/model\n\nyes\n"))
    assert init(tmp_path / "asked") == 0
    config = load_config(tmp_path / "asked" / "kvoffload.toml")
    assert (config.engine.kind, config.engine.python) == ("local", "/opt/vllm/bin/python")
    assert config.model.path == "org/model"
    assert "self-hosted" in (tmp_path / "asked" / ".github" / "workflows" / "kvoffload.yml").read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert init(tmp_path / "silent") == 0
    assert load_config(tmp_path / "silent" / "kvoffload.toml").engine.kind == "cpu"
