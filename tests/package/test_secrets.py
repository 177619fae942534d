"""Secrets that are planted in a configuration and its environment turn up in nothing that is printed or written."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fakes.fake_vllm import FakeConfig, FakeVLLM

from pytest_kvoffload.engine import boot
from pytest_kvoffload.engine.masking import mask_info, secret_values
from pytest_kvoffload.engine.processes import this_process
from pytest_kvoffload.engine.supervise import start_supervised
from pytest_kvoffload.errors import BootError, KVOffloadError
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig, TierClear

FAKES = Path(__file__).parents[1] / "engine" / "fakes"
SECRETS = {
    "access": "AKIAPLANTED0ACCESS01",
    "secret": "planted/Secret+Key==",
    "redis": "planted-redis-pw",
    "token": "hf_plantedTokenValue",
    "api": "planted-api-key-0077",
}
STORE = {
    "bucket": "kv",
    "endpoint_override": "127.0.0.1:1",
    "access_key": SECRETS["access"],
    "secret_key": SECRETS["secret"],
}
TRANSFER = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 100_000_000,
        "secondary_tiers": [{"type": "obj", "store_config": STORE}],
    },
}
ENV = {"HF_TOKEN": SECRETS["token"], "LMCACHE_REMOTE_URL": f"redis://user:{SECRETS['redis']}@127.0.0.1:1/0"}
ARGS = ("--api-key", SECRETS["api"])
CONFIG = f"""
[model]
path = "model"
[engine]
kind = "local"
python = {sys.executable!r}
args = {json.dumps(list(ARGS))}
[engine.env]
HF_TOKEN = "{ENV["HF_TOKEN"]}"
PYTHONPATH = "{FAKES}"
FAKE_VLLM = "talkative-refuse"
[connectors.control]
kind = "recompute"
[connectors.obj]
kind = "tiering"
size_gib = 1
[[connectors.obj.secondary_tiers]]
type = "obj"
store_config = {{ bucket = "kv", endpoint_override = "127.0.0.1:1", access_key = "{SECRETS["access"]}", secret_key = "{
    SECRETS["secret"]
}" }}
[connectors.raw]
kind = "raw"
kv_transfer_config = '{json.dumps(TRANSFER)}'
env = {{ LMCACHE_REMOTE_URL = "{ENV["LMCACHE_REMOTE_URL"]}" }}
[workload]
prefix_tokens = 128
suffix_tokens = 8
output_tokens = 4
"""
TESTS = """
import pytest

@pytest.mark.kvoffload("{name}")
def test_it(kvoffload_measurement, kvoffload_connector, kvoffload_engine, kvoffload_config):
    assert kvoffload_measurement.phase("restored").samples == (), "a test that fails shows its values"
"""


def found_in(text: str | bytes) -> list[str]:
    raw = text.encode() if isinstance(text, str) else text
    return [
        name
        for name, secret in SECRETS.items()
        if any(word.encode() in raw for word in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]))
    ]


def leaks(directory: Path, *, planted: tuple[Path, ...] = ()) -> dict[str, list[str]]:
    """Return what was found in any file, but for those in which it was planted."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink() and path not in planted]
    return {str(path.relative_to(directory)): found for path in files if (found := found_in(path.read_bytes()))}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVOFFLOAD_DEVICE_LOCK", "off")
    monkeypatch.setenv("KVOFFLOAD_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    return str(path)


def arm(fault: str) -> tuple[EngineConfig, ConnectorConfig]:
    env = {"PYTHONPATH": str(FAKES), "FAKE_VLLM": fault, **ENV}
    return (
        EngineConfig(kind="local", args=ARGS, env=env),
        ConnectorConfig(name="raw", kind="raw", options={"kv_transfer_config": TRANSFER}),
    )


def test_a_server_that_prints_all_it_was_given_tells_no_secret(tmp_path: Path, model: str) -> None:
    engine, connector = arm("talkative")
    told: list[str] = []
    run_dir = tmp_path / "run"
    with boot(
        engine=engine, model=ModelConfig(path=model), connector=connector, run_dir=run_dir, progress=told.append
    ) as server:
        assert found_in(repr(server.info)) == []
    log = Path(server.info.log_path or "").read_text()
    assert "non-default args" in log
    assert "'bucket': 'kv'" in log
    assert "***" in log
    assert leaks(run_dir) == {}
    assert found_in("\n".join(told)) == []


def test_a_server_that_dies_of_its_secrets_tells_none(tmp_path: Path, model: str) -> None:
    engine, connector = arm("talkative-refuse")
    run_dir = tmp_path / "run"
    with pytest.raises(BootError, match="ValueError: cannot use") as died:
        boot(engine=engine, model=ModelConfig(path=model), connector=connector, run_dir=run_dir)
    assert found_in(str(died.value) + repr(vars(died.value))) == []
    assert leaks(run_dir) == {}


def test_output_is_masked_whatever_its_pieces(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "secret = os.environ['MY_TOKEN']\n"
        "for piece in ('unfinished ' + secret, '\\n', secret + '\\r' + secret + '\\n', f'url http://h/?k={secret}&x',\n"
        "              'part' + secret + 'part\\n'):\n"
        "    sys.stdout.write(piece); sys.stdout.flush()\n"
        "os.write(1, b'\\xff\\xfe ' + secret.encode() + b' bytes')\n"
    )
    log = tmp_path / "x.log"
    env = {**os.environ, "MY_TOKEN": SECRETS["api"]}
    supervisor, _ = start_supervised([sys.executable, "-c", code], env=env, log=log, scratch=[], owner=this_process())
    assert supervisor.wait(timeout=60) == 0
    raw = log.read_bytes()
    assert b"unfinished ***\n***\r***\n" in raw
    assert b"url http://h/?k=***&x" in raw
    assert raw.endswith(b"\xff\xfe *** bytes")
    assert b"part" + SECRETS["api"].encode() + b"part\n" in raw, "a longer word is another word"


def test_the_secrets_of_a_command_are_found_and_nothing_else() -> None:
    found = secret_values(["vllm", *ARGS, "--kv-transfer-config", json.dumps(TRANSFER), "--port", "8000"], ENV)
    assert set(SECRETS.values()) <= set(found)
    assert not {"kv", "8000", "vllm", "127.0.0.1:1", "kv_both"} & set(found)
    assert secret_values(["vllm", "--api-key", "x", "--hf-token=EMPTY"], {"A_TOKEN": "", "TOKENIZERS": "false"}) == ()


def test_the_address_of_a_tier_that_is_flushed_is_stored_without_its_password(served: FakeVLLM) -> None:
    clear = TierClear(action="redis_flush", target=ENV["LMCACHE_REMOTE_URL"])
    info = dataclasses.replace(served.info, clears=(clear,))
    stored = mask_info(info)
    assert stored.clears[0].target == "redis://***@127.0.0.1:1/0"
    assert found_in(repr(info) + repr(clear)) == []


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makefile(".toml", kvoffload=CONFIG)
    (pytester.path / "model").mkdir()
    (pytester.path / "model" / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    return pytester


@pytest.fixture
def served() -> Iterator[FakeVLLM]:
    with FakeVLLM(FakeConfig(tier_blocks=800)) as server:
        yield server


@pytest.mark.parametrize("name", ["obj", "raw"])
@pytest.mark.parametrize("attached", [True, False])
def test_a_failing_run_of_tests_tells_none(suite: pytest.Pytester, served: FakeVLLM, name: str, attached: bool) -> None:
    suite.makepyfile(test_suite=TESTS.replace("{name}", name))
    words = [
        "--showlocals",
        "--tb=long",
        "-vv",
        "--kvoffload-html=out.html",
        "--junitxml=out.xml",
        "-o",
        "junit_logging=all",
    ]
    if attached:
        words += ["--kvoffload-url", f"{name}={served.url}"]
    else:
        words += ["--kvoffload-lint=warn", "--kvoffload-insist"]
    result = suite.runpytest_subprocess(*words, "-p", "no:cacheprovider", "-W", "ignore")
    text = "\n".join((*result.outlines, *result.errlines))
    assert result.ret == 1
    wanted = "a test that fails shows its values" if attached else "ValueError: cannot use"
    assert wanted in text
    assert found_in(text) == []
    assert leaks(suite.path, planted=(suite.path / "kvoffload.toml",)) == {}
    assert list(suite.path.glob("out.*")) != []


def command(*words: str) -> None:
    """Run a subcommand as the command line would, its error's text on standard output."""
    module = importlib.import_module(f"pytest_kvoffload.commands.{words[0]}")
    parser = argparse.ArgumentParser()
    module.build_parser(parser)
    try:
        module.run(parser.parse_args(words[1:]))
    except KVOffloadError as error:
        print(error)


@pytest.mark.parametrize(
    "words",
    [
        ("lint", "kvoffload.toml"),
        ("lint", "serve.sh"),
        ("lint", "serve.sh", "--format", "json"),
        ("lint", "serve.sh", "--format", "sarif"),
        ("lint", "serve.sh", "--format", "github"),
        ("lint", "serve.sh", "--format", "junit"),
        ("doctor", "--no-import"),
        ("doctor", "--no-import", "--json"),
        ("size", "--model", "model", "--context", "2048", "--sessions", "4"),
        ("init", "--from", "serve.sh", "--directory", "made", "--yes"),
        ("gate", "--candidate", "raw", "--reference", "control"),
        ("chaos", "--connector", "obj", "--fault", "worker_killed"),
    ],
    ids=lambda words: "-".join(words[:2]) + "-" + words[-1],
)
def test_a_command_tells_none(
    tmp_path: Path,
    model: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    assert model
    (tmp_path / "kvoffload.toml").write_text(CONFIG)
    exports = "".join(f"export {key}={value!r}\n" for key, value in ENV.items())
    script = tmp_path / "serve.sh"
    script.write_text(
        f"#!/bin/sh\n{exports}exec vllm serve model {' '.join(ARGS)} --kv-transfer-config '{json.dumps(TRANSFER)}'\n"
    )
    monkeypatch.chdir(tmp_path)
    command(*words)
    out, err = capfd.readouterr()
    assert out + err
    assert found_in(out + err) == []
    assert leaks(tmp_path, planted=(tmp_path / "kvoffload.toml", script)) == {}
