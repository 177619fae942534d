"""The shell reader: what reaches the server, and where each part stands."""

from __future__ import annotations

import pytest
from source_samples import KV, at, document, env, flag_lines, flags, only


def test_array_with_append_in_a_branch_gives_both_paths() -> None:
    found = document(
        "serve.sh",
        f"""
        ARGS=(--max-model-len 4096)
        if [ -n "$KV" ]; then
          ARGS+=(--kv-transfer-config '{KV}')
        fi
        vllm serve m "${{ARGS[@]}}"
        """,
    )
    assert [sorted(flags(launch)) for launch in found.launches] == [
        ["--kv-transfer-config", "--max-model-len"],
        ["--max-model-len"],
    ]
    config = found.launches[0].config("kv-transfer-config")
    assert config is not None
    extra = config.node.get("kv_connector_extra_config")
    assert extra is not None
    size = extra.member("cpu_bytes_to_use")
    assert size is not None
    assert size.node.value == 8589934592
    assert at(found, size.location.line, size.location.column).startswith('"cpu_bytes_to_use"')
    assert at(found, size.node.location.line, size.node.location.column).startswith("8589934592")


def test_the_same_condition_is_answered_alike() -> None:
    found = document(
        "serve.sh",
        """
        if [ "$MODE" = kv ]; then export LMCACHE_LOCAL_CPU=True; fi
        if [ "$MODE" = kv ]; then EXTRA="--kv-offloading-size 4"; else EXTRA=""; fi
        vllm serve m $EXTRA
        """,
    )
    seen = {("--kv-offloading-size" in flags(x), "LMCACHE_LOCAL_CPU" in env(x)) for x in found.launches}
    assert seen == {(True, True), (False, False)}


def test_case_branches_each_give_their_launch() -> None:
    found = document(
        "serve.sh",
        """
        case "$1" in
          big) vllm serve m --kv-offloading-size 40 ;;
          small) vllm serve m --kv-offloading-size 4 ;;
        esac
        """,
    )
    assert [flags(x)["--kv-offloading-size"] for x in found.launches] == ["40", "4"]


def test_exports_prefixes_and_plain_assignments() -> None:
    found = document(
        "run.sh",
        """
        LMCACHE_CONFIG_FILE=cfg.yaml
        export A=1 LMCACHE_CHUNK_SIZE=256
        declare -x LMCACHE_LOCAL_CPU=True
        set -a
        LMCACHE_MAX_LOCAL_CPU_SIZE=20
        set +a
        LMCACHE_LOCAL_DISK=/d
        export LMCACHE_LOCAL_DISK
        X=1 vllm serve m
        """,
    )
    assert env(only(found)) == {
        "LMCACHE_CONFIG_FILE": ("cfg.yaml", False),
        "A": ("1", True),
        "LMCACHE_CHUNK_SIZE": ("256", True),
        "LMCACHE_LOCAL_CPU": ("True", True),
        "LMCACHE_MAX_LOCAL_CPU_SIZE": ("20", True),
        "LMCACHE_LOCAL_DISK": ("/d", True),
        "X": ("1", True),
    }


def test_an_export_after_the_start_is_too_late() -> None:
    found = document("run.sh", "vllm serve m &\nexport LMCACHE_CHUNK_SIZE=1\n")
    assert env(only(found)) == {}


@pytest.mark.parametrize(
    "line",
    [
        "exec vllm serve m --kv-offloading-size 4",
        "nohup vllm serve m --kv-offloading-size 4 > log 2>&1 &",
        "env A=b vllm serve m --kv-offloading-size 4",
        "sudo -E timeout 60 numactl -N 0 vllm serve m --kv-offloading-size 4 | tee log",
        "srun --nodes=1 singularity exec --nv x.sif vllm serve m --kv-offloading-size 4",
        "uv run vllm serve m --kv-offloading-size=4",
        "torchrun --nproc-per-node 2 -m vllm.entrypoints.openai.api_server --model m --kv-offloading-size 4",
        "python3 -u -m vllm.entrypoints.openai.api_server --model m --kv-offloading-size 4",
        "python3 /opt/vllm/entrypoints/openai/api_server.py --model m --kv-offloading-size 4",
        "bash -lc 'vllm serve m --kv-offloading-size 4'",
        'ssh host "cd /x && vllm serve m --kv-offloading-size 4"',
        'eval "vllm serve m --kv-offloading-size 4"',
        "tmux new -d -s a 'vllm serve m --kv-offloading-size 4'",
        "CMD='vllm serve m --kv-offloading-size 4'\n$CMD",
        "CMD='vllm serve m --kv-offloading-size 4'\neval $CMD &",
        "( cd x && vllm serve m --kv-offloading-size 4 )",
        'start() { vllm serve "$1" --kv-offloading-size "$2"; }\nstart m 4',
        "launch() { vllm serve m --kv-offloading-size 4; }",
        "docker run --gpus all --rm -it -p8000:8000 vllm/vllm-openai:v0.28.0 --model m --kv-offloading-size 4",
        "podman run -d --device nvidia.com/gpu=all vllm/vllm-openai m --kv-offloading-size 4",
        "docker run --entrypoint /bin/bash vllm/vllm-openai -c 'vllm serve m --kv-offloading-size 4'",
        "docker exec -it c vllm serve m --kv-offloading-size 4",
        "kubectl run x --image=vllm/vllm-openai -- --model m --kv-offloading-size 4",
        "PID=$(vllm serve m --kv-offloading-size 4 & echo $!)",
        "until vllm serve m --kv-offloading-size 4; do sleep 1; done",
        'set -- vllm serve m --kv-offloading-size 4\nexec "$@"',
        "read -r -d '' CMD <<'E'\nvllm serve m --kv-offloading-size 4\nE\neval \"$CMD\"",
        "bash <<E\nvllm serve m --kv-offloading-size 4\nE",
        "cat > s.sh <<'E'\n#!/bin/bash\nvllm serve m --kv-offloading-size 4\nE",
    ],
)
def test_wrappers_and_detours_lead_to_the_server(line: str) -> None:
    launch = only(document("run.sh", line + "\n"))
    assert launch.product == "vllm"
    assert launch.model is not None
    assert launch.model.text == "m"
    assert flags(launch)["--kv-offloading-size"] == "4"


@pytest.mark.parametrize(
    "line",
    [
        "# vllm serve m --cpu-offload-gb 4",
        "echo vllm serve m --cpu-offload-gb 4",
        'printf "%s" "vllm serve m"',
        'pkill -f "vllm serve"',
        "pip install vllm",
        "vllm --help",
        "vllm serve --help",
        "grep -r 'vllm serve' .",
        'git commit -m "vllm serve m --cpu-offload-gb 4"',
    ],
)
def test_text_about_servers_starts_none(line: str) -> None:
    assert document("run.sh", line + "\n").launches == ()


def test_docker_keeps_the_hosts_environment_outside() -> None:
    found = document(
        "run.sh",
        """
        export LMCACHE_CHUNK_SIZE=256 HF_TOKEN=x
        docker run -e HF_TOKEN -e LMCACHE_LOCAL_CPU=True --env-file .env --shm-size=16g --memory 64g \\
          --ulimit memlock=-1 -v /data:/kv --mount type=tmpfs,dst=/t,tmpfs-size=1g lmcache/vllm-openai:v0.5.6 --model m
        """,
    )
    launch = only(found)
    assert env(launch)["LMCACHE_CHUNK_SIZE"] == ("256", False)
    assert env(launch)["HF_TOKEN"] == ("x", True)
    assert env(launch)["LMCACHE_LOCAL_CPU"] == ("True", True)
    assert not launch.env_complete
    limits = launch.limits
    assert limits.container
    assert limits.shm is not None
    assert limits.shm.bytes == 16 * 2**30
    assert limits.memory_limit is not None
    assert limits.memory_limit.bytes == 64 * 2**30
    assert limits.memlock_unlimited is True
    assert [(m.mount_path, m.kind, m.shared) for m in limits.mounts] == [
        ("/kv", "hostPath", True),
        ("/t", "tmpfs", False),
    ]
    assert launch.lmcache_version is not None
    assert launch.lmcache_version.text == "0.5.6"
    assert launch.vllm_version is None


def test_default_and_unresolved_values_say_so() -> None:
    found = document("run.sh", 'vllm serve "${M:-org/m}" --kv-offloading-size "$SIZE" --port ${P:=8000} "$@"\n')
    launch = only(found)
    assert launch.model is not None
    assert (launch.model.text, launch.model.certainty) == ("org/m", "default")
    size = launch.flag("--kv-offloading-size")
    assert size is not None
    assert size.value is not None
    assert (size.value.text, size.value.certainty) == (None, "unresolved")
    assert not launch.complete
    assert [note.location.line for note in found.unresolved] == [1]


def test_arithmetic_and_spliced_json() -> None:
    found = document(
        "run.sh",
        """
        GB=$((1024**3))
        BYTES=$((8 * GB))
        vllm serve m --kv-transfer-config '{"kv_connector":"X","n":'$BYTES',"s":"'"$UNKNOWN"'"}'
        """,
    )
    config = only(found).config("kv-transfer-config")
    assert config is not None
    assert config.error is None
    assert config.node.plain() == {"kv_connector": "X", "n": 8 * 2**30, "s": None}


def test_files_written_by_the_script_are_read_for_the_launch() -> None:
    found = document(
        "run.sh",
        """
        cat > /tmp/lm.yaml <<EOF
        chunk_size: 256
        max_local_cpu_size: ${SIZE:-20}
        EOF
        cat <<'EOF' > kv.json
        {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
        EOF
        export LMCACHE_CONFIG_FILE=/tmp/lm.yaml
        vllm serve m --kv-transfer-config "$(cat kv.json)"
        """,
    )
    launch = only(found)
    yaml = launch.config("lmcache-yaml")
    assert yaml is not None
    assert yaml.node.plain() == {"chunk_size": 256, "max_local_cpu_size": 20}
    assert yaml.location.line == 2
    transfer = launch.config("kv-transfer-config")
    assert transfer is not None
    role = transfer.node.member("kv_role")
    assert role is not None
    assert at(found, role.location.line, role.location.column).startswith('"kv_role"')


def test_a_lost_backslash_is_a_problem() -> None:
    found = document("run.sh", "vllm serve m \\\n  --port 1\n  --cpu-offload-gb 4\n  --x\n")
    assert [(p.line, text.split(":")[0]) for p, text in found.problems] == [
        (3, "the line above does not end in a backslash")
    ]
    assert not only(found).complete
    assert "--cpu-offload-gb" not in flags(only(found))


def test_a_blank_after_the_backslash_is_a_problem() -> None:
    found = document("run.sh", "vllm serve m \\ \n  --cpu-offload-gb 4\n")
    assert [(p.line, p.column, text.split(":")[0]) for p, text in found.problems] == [
        (1, 14, "blanks after the backslash")
    ]


def test_lines_of_continued_flags() -> None:
    found = document("run.sh", "vllm serve m \\\n  --enable-prefix-caching \\\n  --cpu-offload-gb=40 \\\n  --port 1\n")
    assert flag_lines(only(found)) == {"--enable-prefix-caching": 2, "--cpu-offload-gb": 3, "--port": 4}


def test_words_are_sentences_not_commented_commands() -> None:
    found = document(
        "kv-tier.sh",
        """
        # Spill the KV cache to host RAM
        # vllm serve m --kv-transfer-config '{}'
        # --cpu-offload-gb 3
        echo "Booting with host offload"
        vllm serve m
        """,
    )
    assert [w.text for w in only(found).words] == [
        "kv-tier.sh",
        "Spill the KV cache to host RAM",
        "Booting with host offload",
    ]


def test_dotted_keys_keep_vllms_types() -> None:
    found = document(
        "run.sh",
        "vllm serve m --kv-transfer-config.kv_connector X --kv-transfer-config.e.size 8G "
        "--kv-transfer-config.e.lazy False --kv-transfer-config.e.n=1 --kv-transfer-config.e.l+ a,b\n",
    )
    config = only(found).config("kv-transfer-dotted")
    assert config is not None
    assert config.node.plain() == {
        "kv_connector": "X",
        "e": {"size": 8 * 2**30, "lazy": "False", "n": 1, "l": ["a", "b"]},
    }


def test_json_errors_are_kept() -> None:
    found = document("run.sh", "vllm serve m --kv-transfer-config \"{'kv_connector':'X'}\"\n")
    config = only(found).config("kv-transfer-config")
    assert config is not None
    assert config.error is not None
    assert config.location.line == 1


def test_bare_human_numbers_are_vllms_json() -> None:
    found = document("run.sh", """vllm serve m --kv-transfer-config '{"a":8G,"b":"8G","c":1.5k}'\n""")
    config = only(found).config("kv-transfer-config")
    assert config is not None
    assert config.error is None
    assert config.node.plain() == {"a": 8 * 2**30, "b": "8G", "c": 1500}
    first = config.node.get("a")
    assert first is not None
    assert first.raw == "8G"


def test_suppressions_on_the_line_and_above() -> None:
    found = document(
        "run.sh",
        """
        # kvoffload: ignore[KVO101, KVO102] measured in the lab
        vllm serve m --cpu-offload-gb 4  # kvoffload: ignore[KVO103]
        """,
    )
    seen = [(s.codes, s.reason, s.location.line, s.applies_to_line) for s in found.suppressions]
    assert seen == [(("KVO101", "KVO102"), "measured in the lab", 1, 2), (("KVO103",), "", 2, 2)]


def test_versions_from_pip_lines() -> None:
    found = document("run.sh", "pip install -U vllm==0.28.0 'lmcache==0.5.6'\nvllm serve m\n")
    launch = only(found)
    assert launch.vllm_version is not None
    assert launch.lmcache_version is not None
    assert (launch.vllm_version.text, launch.lmcache_version.text) == ("0.28.0", "0.5.6")
    assert [name for name, _ in found.versions] == ["vllm", "lmcache"]


def test_sglang_and_the_lmcache_server() -> None:
    found = document(
        "run.sh",
        """
        lmcache server --l1-size-gb 20 --eviction-policy LRU &
        python -m sglang.launch_server --model-path m --enable-hierarchical-cache --hicache-size 10
        """,
    )
    assert [launch.product for launch in found.launches] == ["lmcache-server", "sglang"]
    assert flags(found.launches[1])["--hicache-size"] == "10"


def test_quotes_inside_an_unquoted_variable_reach_the_server() -> None:
    found = document("run.sh", "A=\"--kv-transfer-config '{}'\"\nvllm serve m $A\n")
    assert flags(only(found))["--kv-transfer-config"] == "'{}'"


def test_sourced_files_may_bring_variables() -> None:
    assert not only(document("run.sh", "source kv.env\nvllm serve m\n")).env_complete
    assert only(document("run.sh", "source .venv/bin/activate\nvllm serve m\n")).env_complete


def test_characters_outside_ascii_keep_their_places() -> None:
    found = document(
        "run.sh", "M='modèle-☃-😀'  # größer\nvllm serve \"$M\" --served-model-name 名前 --cpu-offload-gb 4\n"
    )
    launch = only(found)
    assert launch.model is not None
    assert launch.model.text == "modèle-☃-😀"
    assert flags(launch)["--served-model-name"] == "名前"
    flag = launch.flag("--cpu-offload-gb")
    assert flag is not None
    assert at(found, flag.location.line, flag.location.column) == "--cpu-offload-gb 4"


def test_a_flag_line_without_a_launch_above_is_no_problem() -> None:
    assert document("x.sh", "echo vllm\n--cpu-offload-gb 4\n").problems == ()
