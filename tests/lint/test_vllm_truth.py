"""What the rules say about vLLM, asked of the real package: its argument parser and its own classes.

One subprocess for each version answers all questions. Each case names the rule, the question, and what vLLM must do for
the rule's claim to be true; the last column is a launch that the rule must then report (or must not).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.engine.provision import ensure_engine
from pytest_kvoffload.lint import lint_text

pytestmark = pytest.mark.engine

VERSIONS = ("0.27.1", "0.32.0")
SCRIPT = Path(__file__).parent / "truth" / "vllm_answers.py"
GIB8 = 8589934592

Answer = Mapping[str, Any]
Judge = Callable[[Answer, str], bool]


def refuses(text: str) -> Judge:
    """The answer is an error with that text."""
    return lambda answer, version: text in answer.get("error", "")


def accepts(answer: Answer, version: str) -> bool:
    """The answer is no error."""
    return bool(answer.get("ok"))


def native(**extra: Any) -> str:
    """Return a transfer configuration of the native connector."""
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return json.dumps(config)


@dataclass(frozen=True)
class Case:
    """One claim."""

    code: str
    ask: Mapping[str, Any]
    holds: Judge
    launch: str
    reported: bool = True
    versions: tuple[str, ...] = field(default=VERSIONS)
    name: str = "serve.sh"

    @property
    def id(self) -> str:
        """Name of the test."""
        return f"{self.code}-{self.ask['ask']}-{abs(hash(self.launch)) % 10**6}"


def parse(*argv: str) -> dict[str, Any]:
    """Ask the argument parser."""
    return {"ask": "parse", "argv": list(argv)}


def serve(arguments: str) -> str:
    """Return a launch line."""
    return f"PYTHONHASHSEED=0 vllm serve m {arguments}\n"


FULL = native(cpu_bytes_to_use=GIB8)
DOT = "--kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use"
TIERS = [{"type": "fs", "root_dir": "/kv"}]
WRONG_LEVEL = '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","cpu_bytes_to_use":1}'
NO_OBJECT = '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_connector_extra_config":"x"}'
LMCACHE = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'

CASES = [
    Case(
        "KVO203",
        parse("m", "--kv-transfer-config", '{"kv_connector":"NixlConnector"}'),
        refuses("kv_role"),
        serve("""--kv-transfer-config '{"kv_connector":"NixlConnector"}'"""),
    ),
    Case(
        "KVO204",
        parse("m", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"both"}'),
        refuses("kv_role"),
        serve("""--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"both"}'"""),
    ),
    Case(
        "KVO201",
        {"ask": "connector", "transfer": {"kv_connector": "OffloadConnector", "kv_role": "kv_both"}},
        refuses("Unsupported connector type"),
        serve("""--kv-transfer-config '{"kv_connector":"OffloadConnector","kv_role":"kv_both"}'"""),
    ),
    Case(
        "KVO202",
        {"ask": "connector", "transfer": {"kv_connector": "LMCacheConnector", "kv_role": "kv_both"}},
        refuses("Unsupported connector type"),
        serve("""--kv-transfer-config '{"kv_connector":"LMCacheConnector","kv_role":"kv_both"}'"""),
    ),
    Case(
        "KVO202",
        {"ask": "connector", "transfer": {"kv_connector": "SharedStorageConnector", "kv_role": "kv_both"}},
        refuses("Unsupported connector type"),
        serve("""--kv-transfer-config '{"kv_connector":"SharedStorageConnector","kv_role":"kv_both"}'"""),
    ),
    Case(
        "KVO207",
        {
            "ask": "connector",
            "transfer": {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_module_path": ""},
        },
        refuses("cannot be an empty string"),
        serve("--kv-transfer-config '" + FULL.replace("{", '{"kv_connector_module_path":"",', 1) + "'"),
    ),
    Case(
        "KVO208",
        {"ask": "connector", "transfer": {"kv_connector_extra_config": {"cpu_bytes_to_use": GIB8}}},
        refuses("Connector name is not set"),
        serve("""--kv-transfer-config '{"kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'"""),
    ),
    Case(
        "KVO301",
        parse(
            "m",
            "--kv-transfer-config",
            '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","cpu_bytes_to_use":1}',
        ),
        refuses("cpu_bytes_to_use"),
        serve(
            """--kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","cpu_bytes_to_use":1}'"""
        ),
    ),
    Case(
        "KVO302",
        parse("m", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_rank":0}'),
        refuses("kv_rank"),
        serve("""--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_rank":0}'"""),
        versions=("0.32.0",),
    ),
    Case(
        "KVO302",
        parse("m", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_rank":0}'),
        accepts,
        serve("""--kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_rank":0}'"""),
        reported=False,
        versions=("0.27.1",),
    ),
    Case(
        "KVO303",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": GIB8, "eviction_polcy": "nonsense"}},
        accepts,
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use=GIB8, eviction_polcy='arc')}'"),
    ),
    Case(
        "KVO304",
        {"ask": "spec", "extra": {"num_cpu_blocks": 1000}},
        refuses("cpu_bytes_to_use must be specified"),
        serve(f"--kv-transfer-config '{native(num_cpu_blocks=1000)}'"),
    ),
    Case(
        "KVO305",
        {"ask": "spec", "extra": {}},
        refuses("cpu_bytes_to_use must be specified"),
        serve("""--kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}'"""),
    ),
    Case(
        "KVO307",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": GIB8, "offload_prompt_only": "false"}},
        lambda answer, version: answer.get("prompt_only") is True,
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use=GIB8, offload_prompt_only='false')}'"),
    ),
    Case(
        "KVO307",
        parse("m", "--kv-transfer-config.kv_connector_extra_config.offload_prompt_only", "False"),
        lambda answer, version: answer["transfer"]["extra"]["offload_prompt_only"] == "False",
        serve(
            "--kv-transfer-config.kv_connector OffloadingConnector --kv-transfer-config.kv_role kv_both "
            f"{DOT} 8G --kv-transfer-config.kv_connector_extra_config.offload_prompt_only False"
        ),
    ),
    Case(
        "KVO308",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": "8G"}},
        refuses("invalid literal for int()"),
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use='8G')}'"),
    ),
    Case(
        "KVO308",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": "1e9"}},
        refuses("invalid literal for int()"),
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use='1e9')}'"),
    ),
    Case(
        "KVO308",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": "8000000000"}},
        accepts,
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use='8000000000')}'"),
        reported=False,
    ),
    Case(
        "KVO308",
        parse("m", "--kv-transfer-config", FULL.replace(str(GIB8), "8G")),
        lambda answer, version: answer["transfer"]["extra"]["cpu_bytes_to_use"] == GIB8,
        serve("--kv-transfer-config '" + FULL.replace(str(GIB8), "8G") + "'"),
        reported=False,
    ),
    Case(
        "KVO309",
        parse("m", "--kv-transfer-config", NO_OBJECT),
        refuses("kv_connector_extra_config"),
        serve(f"--kv-transfer-config '{NO_OBJECT}'"),
    ),
    Case(
        "KVO310",
        {"ask": "spec", "manager": True, "extra": {"cpu_bytes_to_use": GIB8, "eviction_policy": "LRU"}},
        refuses("Unknown cache policy"),
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use=GIB8, eviction_policy='LRU')}'"),
    ),
    Case(
        "KVO310",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": GIB8, "spec_name": "TieredOffloadingSpec"}},
        refuses("Unsupported spec type"),
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use=GIB8, spec_name='TieredOffloadingSpec')}'"),
    ),
    Case(
        "KVO310",
        parse("m", "--kv-offloading-size", "8", "--kv-offloading-backend", "cpu"),
        refuses("invalid choice"),
        serve("--kv-offloading-size 8 --kv-offloading-backend cpu"),
    ),
    Case(
        "KVO310",
        parse("m", "--kv-transfer-config", FULL.replace("{", '{"kv_load_failure_policy":"retry",', 1)),
        refuses("kv_load_failure_policy"),
        serve("--kv-transfer-config '" + FULL.replace("{", '{"kv_load_failure_policy":"retry",', 1) + "'"),
    ),
    Case(
        "KVO312",
        {"ask": "tier", "tier": {"type": "fs", "root_dir": "/kv", "roots": 1}},
        refuses("TypeError"),
        serve(
            "--kv-transfer-config '"
            + native(
                spec_name="TieringOffloadingSpec",
                cpu_bytes_to_use=GIB8,
                secondary_tiers=[{"type": "fs", "root_dir": "/kv", "roots": 1}],
            )
            + "'"
        ),
    ),
    Case(
        "KVO312",
        {"ask": "tier", "tier": {"type": "fs"}},
        refuses("root_dir"),
        serve(
            "--kv-transfer-config '"
            + native(spec_name="TieringOffloadingSpec", cpu_bytes_to_use=GIB8, secondary_tiers=[{"type": "fs"}])
            + "'"
        ),
    ),
    Case(
        "KVO312",
        {"ask": "tier", "tier": {"type": "fs_python", "root_dir": "/kv"}},
        refuses("fs_python"),
        serve(
            "--kv-transfer-config '"
            + native(
                spec_name="TieringOffloadingSpec",
                cpu_bytes_to_use=GIB8,
                secondary_tiers=[{"type": "fs_python", "root_dir": "/kv"}],
            )
            + "'"
        ),
    ),
    Case(
        "KVO315",
        {
            "ask": "multi",
            "transfer": {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "connectors": [{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "engine_id": "a"}]
                },
            },
        },
        refuses("engine_id"),
        serve(
            """--kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","""
            """"kv_connector_extra_config":"""
            """{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both","engine_id":"a"}]}}'"""
        ),
    ),
    Case(
        "KVO501",
        parse("m", "--kv-transfer-config", FULL, DOT, "8G"),
        lambda answer, version: answer["transfer"]["kv_connector"] is None,
        serve(f"--kv-transfer-config '{FULL}' {DOT} 8G"),
    ),
    Case(
        "KVO502",
        parse("m", "--kv-transfer-config", FULL, "--kv-transfer-config", LMCACHE),
        lambda answer, version: answer["transfer"]["kv_connector"] == "LMCacheConnectorV1",
        serve(f"--kv-transfer-config '{FULL}' --kv-transfer-config '{LMCACHE}'"),
    ),
    Case(
        "KVO503",
        parse("m", "--config=/nowhere/serve.yaml", "--port", "8123"),
        lambda answer, version: answer.get("port") == 8123 and answer["size"] is None,
        "vllm serve --config=/nowhere/serve.yaml --port 8123\n",
    ),
    Case(
        "KVO504",
        {"ask": "yaml", "text": "model: m\nenable_prefix_caching: false\nkv-offloading-size: 8\n"},
        lambda answer, version: answer.get("prefix") is None and answer.get("size") == 8,
        "model: m\nenable_prefix_caching: false\nkv-offloading-size: 8\n",
        name="serve.yaml",
    ),
    Case(
        "KVO504",
        {"ask": "yaml", "text": "model: m\nenable-prefix-caching: false\nkv-offloading-size: 8\n"},
        lambda answer, version: answer.get("prefix") is (None if version < "0.28" else False),
        "model: m\nenable-prefix-caching: false\nkv-offloading-size: 8\n",
        name="serve.yaml",
        versions=("0.27.1",),
    ),
    Case(
        "KVO504",
        {"ask": "yaml", "text": "model: m\nenable-prefix-caching: false\nkv-offloading-size: 8\n"},
        lambda answer, version: answer.get("prefix") is False,
        "model: m\nenable-prefix-caching: false\nkv-offloading-size: 8\n",
        name="serve.yaml",
        reported=False,
        versions=("0.32.0",),
    ),
    Case(
        "KVO507",
        parse("m", "--kv-transfer-config", "{'kv_connector':'OffloadingConnector','kv_role':'kv_both'}"),
        refuses("kv-transfer-config"),
        serve("--kv-transfer-config \"{'kv_connector':'OffloadingConnector','kv_role':'kv_both'}\""),
    ),
    Case(
        "KVO508",
        parse(
            "m", "--kv-transfer-config.kv-connector", "OffloadingConnector", "--kv-transfer-config.kv-role", "kv_both"
        ),
        refuses("error"),
        serve("--kv-transfer-config.kv-connector OffloadingConnector --kv-transfer-config.kv-role kv_both"),
    ),
    Case("KVO509", parse("m", "--kv-offloading-size", "10GB"), refuses("10GB"), serve("--kv-offloading-size 10GB")),
    Case(
        "KVO509",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": 0.0}},
        refuses("cpu_bytes_to_use must be specified"),
        serve("--kv-offloading-size 0"),
    ),
    Case(
        "KVO510",
        parse("m", "--kv-offloading-gb", "8"),
        refuses("unrecognized arguments"),
        serve("--kv-offloading-gb 8"),
    ),
    Case(
        "KVO511",
        parse("m", "--swap-space", "4"),
        refuses("unrecognized arguments: --swap-space"),
        serve("--swap-space 4"),
    ),
    Case(
        "KVO601",
        {"ask": "effective", "cache": {"kv_offloading_backend": "native"}},
        lambda answer, version: bool(answer.get("ok")) and answer["transfer"] is None,
        serve("--kv-offloading-backend native"),
    ),
    Case(
        "KVO602",
        {
            "ask": "effective",
            "cache": {"kv_offloading_size": 32},
            "transfer": {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        },
        lambda answer, version: answer["transfer"]["kv_connector"] == "OffloadingConnector",
        serve(
            """--kv-offloading-size 32 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'"""
        ),
    ),
    Case(
        "KVO603",
        {"ask": "simple", "prefix": False, "extra": {"cpu_bytes_to_use": GIB8}},
        lambda answer, version: answer.get("working") is False,
        serve(
            "--no-enable-prefix-caching --kv-transfer-config '"
            + FULL.replace("OffloadingConnector", "SimpleCPUOffloadConnector")
            + "'"
        ),
    ),
    Case(
        "KVO605",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": GIB8, "secondary_tiers": TIERS}},
        lambda answer, version: answer.get("class") == "CPUOffloadingSpec",
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use=GIB8, secondary_tiers=TIERS)}'"),
    ),
    Case(
        "KVO701",
        {"ask": "spec", "extra": {"cpu_bytes_to_use": 8}},
        lambda answer, version: answer.get("chunks") == 0,
        serve(f"--kv-transfer-config '{native(cpu_bytes_to_use=8)}'"),
    ),
    Case(
        "KVO801",
        {
            "ask": "effective",
            "cache": {"kv_offloading_size": 4},
            "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        },
        refuses("expandable_segments"),
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + serve("--kv-offloading-size 4"),
    ),
    Case(
        "KVO809",
        parse("m", "--device-memory-utilization", "0.9"),
        refuses("unrecognized arguments"),
        serve("--device-memory-utilization 0.9"),
        versions=("0.27.1",),
    ),
    Case(
        "KVO809",
        parse("m", "--device-memory-utilization", "0.9"),
        accepts,
        serve("--device-memory-utilization 0.9"),
        reported=False,
        versions=("0.32.0",),
    ),
]


def ask(python: str, questions: list[dict[str, Any]]) -> list[Answer]:
    """Let the engine's interpreter answer."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "answers.json"
        env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        env.pop("PYTHONHASHSEED", None)
        done = subprocess.run(
            [python, str(SCRIPT), str(target)],
            input=json.dumps(questions),
            capture_output=True,
            text=True,
            env=env,
            timeout=600,
            check=False,
        )
        assert target.is_file(), done.stderr[-3000:]
        answers: list[Answer] = json.loads(target.read_text(encoding="utf-8"))
        return answers


EXTRA: tuple[dict[str, Any], ...] = (
    {"ask": "hash_seed", "algorithm": "sha256"},
    {"ask": "hash_seed", "algorithm": "xxhash"},
    {"ask": "registered"},
    {"ask": "flags"},
)


@dataclass(frozen=True)
class Engine:
    """The answers of one real vLLM: ``extra`` and ``again`` are those to ``EXTRA``, of two processes."""

    version: str
    answers: list[Answer]
    extra: list[Answer]
    again: list[Answer]


@pytest.fixture(scope="session", params=VERSIONS)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Ask one vLLM everything. ``KVOFFLOAD_TEST_PYTHON_0_32_0`` names an interpreter that has that vLLM already."""
    version: str = request.param
    python = os.environ.get(f"KVOFFLOAD_TEST_PYTHON_{version.replace('.', '_')}") or str(ensure_engine(version).python)
    answers = ask(python, [*(dict(case.ask) for case in CASES), *EXTRA])
    return Engine(version, answers[: len(CASES)], answers[len(CASES) :], ask(python, list(EXTRA[:2])))


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{i}-{c.code}" for i, c in enumerate(CASES)])
def test_vllm_does_what_the_rule_says(engine: Engine, index: int) -> None:
    case = CASES[index]
    if engine.version not in case.versions:
        return
    answer = engine.answers[index]
    assert case.holds(answer, engine.version), f"vLLM {engine.version} answers {answer}"
    found = [d.code for d in lint_text(case.name, case.launch, vllm_version=engine.version)]
    assert (case.code in found) is case.reported, f"{case.launch}: {found}"


def test_the_catalog_is_the_package(engine: Engine) -> None:
    assert catalog.vllm_connectors(engine.version) == set(engine.extra[2]["names"])
    known = catalog.vllm_flags(engine.version)
    missing = {f for f in engine.extra[3]["names"] if f not in known and f.replace("--no-", "--", 1) not in known}
    missing.discard("--help")
    assert not missing, "run regenerate_lint_vllm for this version"


def test_hashes_of_two_processes(engine: Engine) -> None:
    """KVO802: before 0.29 every process starts from a random number; from then on only for xxhash."""
    sha256 = engine.extra[0]["hash"] == engine.again[0]["hash"]
    assert sha256 is (engine.version == "0.32.0")
    if "error" in engine.extra[1]:  # the xxhash package is optional
        assert "xxhash" in engine.extra[1]["error"]
    else:
        assert engine.extra[1]["hash"] != engine.again[1]["hash"]
