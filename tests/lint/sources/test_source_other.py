"""Python, Dockerfiles, units, batch files, Markdown, notebooks, TOML, and the smaller formats."""

from __future__ import annotations

import json

from source_samples import KV, SAMPLES, at, document, env, flag_lines, flags, only


def test_python_engines_and_processes() -> None:
    found = document("run.py", SAMPLES["run.py"])
    engine, process, shell = found.launches
    assert flags(engine) == {"--model": "m", "--kv-transfer-config": None, "--cpu-offload-gb": "4"}
    assert env(engine) == {"LMCACHE_CHUNK_SIZE": ("256", True)}
    config = engine.config("kv-transfer-config")
    assert config is not None
    assert config.node.plain() == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    assert config.location.line == 5
    assert flags(process) == {"--kv-offloading-size": "8"}
    assert env(process)["A"] == ("b", True)
    assert flags(shell) == {"--swap-space": "4"}
    assert found.loose_configs == ()


def test_python_values_known_from_the_text() -> None:
    found = document(
        "serve.py",
        """
        import json
        from vllm import EngineArgs
        GIB = 1 << 30
        extra = {"cpu_bytes_to_use": 8 * GIB, "lazy_offload": "false"}
        cfg = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}

        def build(model="org/m", **kwargs):
            args = EngineArgs(model=model, kv_transfer_config=json.dumps(cfg), enable_prefix_caching=False, **kwargs)
            return args

        def command(port):
            return [
                "python", "-m", "vllm.entrypoints.openai.api_server",
                "--model", "org/m", "--port", str(port),
                "--kv-transfer-config", json.dumps(cfg),
            ]
        """,
    )
    engine, command = found.launches
    assert not engine.complete
    assert engine.model is not None
    assert (engine.model.text, engine.model.certainty) == ("org/m", "default")
    assert engine.flag("--no-enable-prefix-caching") is not None
    for launch in (engine, command):
        config = launch.config("kv-transfer-config")
        assert config is not None
        extra = config.node.get("kv_connector_extra_config")
        assert extra is not None
        assert extra.plain() == {"cpu_bytes_to_use": 8 * 2**30, "lazy_offload": "false"}
        member = extra.member("cpu_bytes_to_use")
        assert member is not None
        assert member.location.line == 4


def test_python_ray_and_runtime_env() -> None:
    found = document(
        "app.py",
        """
        from ray.serve.llm import LLMConfig
        config = LLMConfig(
            model_loading_config=dict(model_id="m", model_source="org/m"),
            engine_kwargs=dict(cpu_offload_gb=4, kv_transfer_config=dict(kv_connector="X")),
            runtime_env=dict(env_vars={"LMCACHE_CHUNK_SIZE": "256"}),
        )
        """,
    )
    launch = only(found)
    assert launch.source == "ray"
    assert flags(launch) == {"--cpu-offload-gb": "4", "--kv-transfer-config": None}
    assert env(launch) == {"LMCACHE_CHUNK_SIZE": ("256", True)}
    assert launch.model is not None
    assert launch.model.text == "org/m"


def test_another_librarys_llm_is_not_vllms() -> None:
    found = document("x.py", "import vllm\nfrom tensorrt_llm import LLM\nLLM(model='m', kv_cache_config=1)\n")
    assert found.launches == ()


def test_python_text_about_servers_starts_none() -> None:
    found = document("x.py", 'import vllm\n"""vllm serve m"""\nprint("vllm serve m --cpu-offload-gb 4")\n')
    assert found.launches == ()


def test_from_cli_that_nothing_takes_is_loose() -> None:
    found = document("x.py", f"from vllm.config import KVTransferConfig\nc = KVTransferConfig.from_cli('{KV}')\n")
    assert [c.node.plain()["kv_connector"] for c in found.loose_configs] == ["OffloadingConnector"]


def test_python_positions_inside_long_strings() -> None:
    found = document(
        "x.py",
        '''
        import subprocess
        subprocess.run("""
            vllm serve m \\\\
              --cpu-offload-gb 4
        """, shell=True)
        ''',
    )
    flag = only(found).flag("--cpu-offload-gb")
    assert flag is not None
    assert at(found, flag.location.line, flag.location.column).startswith("--cpu-offload-gb 4")


def test_our_own_mark() -> None:
    found = document(
        "test_x.py",
        """
        import pytest
        @pytest.mark.kvoffload("native", engine={"args": ["--cpu-offload-gb", "4"], "env": {"LMCACHE_CHUNK_SIZE": "1"}})
        def test_it(kvoffload_server): ...
        """,
    )
    launch = only(found)
    assert launch.source == "kvoffload"
    assert flags(launch) == {"--cpu-offload-gb": "4"}
    assert not launch.complete


def test_our_own_toml() -> None:
    found = document("kvoffload.toml", SAMPLES["kvoffload.toml"])
    native, own = found.launches
    config = native.config("kv-transfer-config")
    assert config is not None
    assert config.node.plain() == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 2 * 2**30},
    }
    assert own.config("kv-transfer-config") is not None


def test_dockerfile_forms() -> None:
    found = document("Dockerfile", SAMPLES["Dockerfile"])
    launch = only(found)
    assert flags(launch) == {"--kv-offloading-size": "4"}
    assert launch.model is not None
    assert launch.model.text == "m"
    assert launch.vllm_version is not None
    assert (launch.vllm_version.text, launch.vllm_version.certainty) == ("0.28.0", "default")
    assert launch.lmcache_version is not None
    assert env(launch)["LMCACHE_CHUNK_SIZE"] == ("256", True)
    shell = document(
        "Dockerfile.gpu",
        """
        FROM vllm/vllm-openai:v0.27.1 AS base
        ENV SIZE 4
        FROM base
        # start with the tier
        CMD vllm serve m \\
              # the size
              --kv-offloading-size $SIZE
        """,
    )
    assert flags(only(shell)) == {"--kv-offloading-size": "4"}
    assert flag_lines(only(shell)) == {"--kv-offloading-size": 7}


def test_dockerfile_arguments_for_the_images_own_entry_point() -> None:
    found = document("Dockerfile", 'FROM vllm/vllm-openai\nCMD ["--model", "m", "--swap-space", "4"]\n')
    assert flags(only(found)) == {"--model": "m", "--swap-space": "4"}


def test_dockerfile_environment_without_a_launch() -> None:
    found = document("Dockerfile", "FROM lmcache/vllm-openai\nENV LMCACHE_CHUNK_SIZE=256\n")
    assert [(v.name, v.value.text) for v in found.loose_env] == [("LMCACHE_CHUNK_SIZE", "256")]


def test_systemd_unit() -> None:
    launch = only(document("vllm.service", SAMPLES["vllm.service"]))
    assert env(launch) == {"LMCACHE_LOCAL_CPU": ("True", True), "MODEL": ("m", True)}
    assert launch.model is not None
    assert launch.model.text == "m"
    assert flag_lines(launch) == {"--kv-offloading-size": 7}
    assert launch.limits.memlock_unlimited is True
    assert "KV tier" in [w.text for w in launch.words]


def test_quadlet_container() -> None:
    found = document(
        "vllm.container",
        """
        [Container]
        Image=vllm/vllm-openai:v0.28.0
        Environment=LMCACHE_CHUNK_SIZE=256
        ShmSize=8g
        Exec=--model m --kv-offloading-size 4
        """,
    )
    launch = only(found)
    assert flags(launch) == {"--model": "m", "--kv-offloading-size": "4"}
    assert launch.limits.shm is not None
    assert launch.limits.container


def test_batch_file() -> None:
    launch = only(document("job.sbatch", SAMPLES["job.sbatch"]))
    assert launch.limits.memory_limit is not None
    assert launch.limits.memory_limit.bytes == 200 * 2**30
    assert env(launch) == {"LMCACHE_LOCAL_CPU": ("True", True)}
    assert "kv-offload" in [w.text for w in launch.words]


def test_markdown_only_on_request() -> None:
    assert document("notes.md", SAMPLES["notes.md"]).launches == ()
    found = document("notes.md", SAMPLES["notes.md"], markdown=True)
    assert flag_lines(only(found)) == {"--cpu-offload-gb": 4}


def test_notebook_cells() -> None:
    launch = only(document("cells.ipynb", SAMPLES["cells.ipynb"]))
    assert flags(launch) == {"--cpu-offload-gb": "4"}
    two = json.dumps({"cells": [{"cell_type": "code", "source": "from vllm import LLM\nLLM('m', cpu_offload_gb=4)"}]})
    assert flags(only(document("x.ipynb", two))) == {"--cpu-offload-gb": "4"}


def test_loose_files() -> None:
    variables = document(".env", SAMPLES[".env"]).loose_env
    assert [(v.name, v.value.text) for v in variables] == [("LMCACHE_CHUNK_SIZE", "256"), ("LMCACHE_LOCAL_CPU", "True")]
    assert [c.kind for c in document("kv.json", SAMPLES["kv.json"]).loose_configs] == ["kv-transfer-config"]
    versions = document("requirements.txt", SAMPLES["requirements.txt"]).versions
    assert [(n, v.text) for n, v in versions] == [("vllm", "0.28.0"), ("lmcache", "0.5.6")]
    lock = document("uv.lock", '[[package]]\nname = "vllm"\nversion = "0.28.0"\n')
    assert [(n, v.text) for n, v in lock.versions] == [("vllm", "0.28.0")]
