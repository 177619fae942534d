"""Kubernetes, Compose, Helm, Kustomize, workflows and configuration files in YAML."""

from __future__ import annotations

from source_samples import KV, SAMPLES, at, document, env, flag_lines, flags, only

from pytest_kvoffload.lint.sources import read


def test_script_in_a_literal_block_keeps_its_lines() -> None:
    found = document("pod.yaml", SAMPLES["pod.yaml"])
    launch = only(found)
    assert (launch.source, launch.embedded_in) == ("shell", "kubernetes")
    assert launch.location.line == 12
    assert launch.model is not None
    assert launch.model.text == "m"
    flag = launch.flag("--kv-transfer-config")
    assert flag is not None
    assert at(found, flag.location.line, flag.location.column).startswith("--kv-transfer-config '{")
    config = launch.config("kv-transfer-config")
    assert config is not None
    connector = config.node.get("kv_connector")
    assert connector is not None
    assert at(found, connector.location.line, connector.location.column).startswith('"OffloadingConnector"')
    assert env(launch)["LMCACHE_CHUNK_SIZE"] == ("16", True)
    assert launch.limits.shm is not None
    assert launch.limits.shm.bytes == 8 * 2**30
    assert launch.limits.memory_limit is not None
    assert [c.kind for c in found.loose_configs] == ["lmcache-yaml"]
    chunk = found.loose_configs[0].node.members[0]
    assert at(found, chunk.location.line, chunk.location.column) == "chunk_size: 256"


def test_escaped_json_in_a_double_quoted_scalar() -> None:
    text = '{kind: Pod, spec: {containers: [{name: a, image: vllm/vllm-openai, args: ["--kv-transfer-config", "'
    text += KV.replace('"', '\\"') + '"]}]}}\n'
    found = read("p.yaml", text)
    config = only(found).config("kv-transfer-config")
    assert config is not None
    extra = config.node.get("kv_connector_extra_config")
    assert extra is not None
    size = extra.get("cpu_bytes_to_use")
    assert size is not None
    assert at(found, size.location.line, size.location.column).startswith("8589934592")


def test_containers_anywhere() -> None:
    container = "{name: v, image: 'vllm/vllm-openai:v0.28.0', args: [--model=m, --kv-offloading-size, '4']}"
    bodies = {
        "Deployment": "spec: {replicas: 3, template: {spec: {containers: [C]}}}",
        "CronJob": "spec: {jobTemplate: {spec: {template: {spec: {containers: [C]}}}}}",
        "LeaderWorkerSet": "spec: {leaderWorkerTemplate: {workerTemplate: {spec: {containers: [C]}}}}",
        "RayService": "spec: {rayClusterConfig: {headGroupSpec: {template: {spec: {initContainers: [C]}}}}}",
        "InferenceService": "spec: {predictor: {model: C}}",
        "DynamoGraphDeployment": "spec: {services: {W: {extraPodSpec: {mainContainer: C}}}}",
        "List": "items: [{apiVersion: v1, kind: Pod, spec: {containers: [C]}}]",
    }
    for kind, body in bodies.items():
        found = read(
            "x.yaml",
            f"apiVersion: v1\nkind: {kind}\n{body.replace('C]', container + ']').replace('C}', container + '}')}\n",
        )
        launch = only(found)
        assert flags(launch) == {"--model": "m", "--kv-offloading-size": "4"}, kind
        assert launch.vllm_version is not None
        assert launch.vllm_version.text == "0.28.0"
        assert launch.replicas == (3 if kind == "Deployment" else 1)


def test_environment_of_a_container() -> None:
    found = document(
        "x.yaml",
        """
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: c}
        data: {LMCACHE_CHUNK_SIZE: "256"}
        ---
        apiVersion: v1
        kind: Pod
        spec:
          containers:
            - name: v
              image: vllm/vllm-openai
              args: ["--model", "$(M)", "--kv-transfer-config=$(KV)"]
              envFrom: [{configMapRef: {name: c}}]
              env:
                - {name: M, value: org/m}
                - {name: KV, value: '{"kv_connector":"X"}'}
                - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}
        """,
    )
    launch = only(found)
    assert env(launch) == {
        "LMCACHE_CHUNK_SIZE": ("256", True),
        "M": ("org/m", True),
        "KV": ('{"kv_connector":"X"}', True),
        "HF_TOKEN": (None, True),
    }
    assert launch.env_complete
    assert launch.model is not None
    assert launch.model.text == "org/m"
    config = launch.config("kv-transfer-config")
    assert config is not None
    assert config.node.plain() == {"kv_connector": "X"}
    assert config.location.line == 16


def test_compose_folded_command_and_interpolation() -> None:
    found = document(
        "docker-compose.yml",
        """
        x-base: &base
          shm_size: 8gb
          environment: {LMCACHE_LOCAL_CPU: "True"}
        services:
          vllm:
            <<: *base
            image: vllm/vllm-openai:${TAG:-v0.28.0}
            env_file: .env
            command: >
              --model m
              --kv-transfer-config '{"kv_connector":"X",
              "kv_role":"kv_both"}'
              --port $PORT --api-key $$KEY
            ulimits: {memlock: {soft: -1, hard: -1}}
            deploy: {replicas: 2, resources: {limits: {memory: 64g}}}
        """,
    )
    launch = only(found)
    assert flags(launch) == {
        "--model": "m",
        "--kv-transfer-config": '{"kv_connector":"X", "kv_role":"kv_both"}',
        "--port": None,
        "--api-key": "$KEY",
    }
    assert flag_lines(launch) == {"--model": 10, "--kv-transfer-config": 11, "--port": 13, "--api-key": 13}
    config = launch.config("kv-transfer-config")
    assert config is not None
    role = config.node.member("kv_role")
    assert role is not None
    assert (role.location.line, at(found, role.location.line, role.location.column)[:9]) == (12, '"kv_role"')
    assert launch.vllm_version is not None
    assert (launch.vllm_version.text, launch.vllm_version.certainty) == ("0.28.0", "default")
    assert not launch.env_complete
    assert launch.replicas == 2
    assert launch.limits.memlock_unlimited is True
    assert launch.limits.shm is not None
    assert launch.limits.shm.bytes == 8 * 2**30


def test_compose_scripts_and_lists() -> None:
    found = document(
        "compose.yaml",
        """
        services:
          a:
            image: my/image
            environment: ["LMCACHE_CHUNK_SIZE=16", "HOME"]
            entrypoint: ["/bin/bash", "-c"]
            command:
              - |
                export A=$$LMCACHE_CHUNK_SIZE
                vllm serve m --cpu-offload-gb 4
          b:
            image: vllm/vllm-openai
            command: ["--model", "m", "--swap-space", "4"]
        """,
    )
    first, second = found.launches
    assert env(first)["A"] == ("16", True)
    assert (first.source, first.embedded_in) == ("shell", "compose")
    assert flags(second)["--swap-space"] == "4"


def test_production_stack_values_become_what_the_chart_runs() -> None:
    launch = only(document("values.yaml", SAMPLES["values.yaml"]))
    assert flags(launch) == {
        "--tensor-parallel-size": "2",
        "--max-num-seqs": "8",
        "--kv-transfer-config": '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}',
    }
    assert env(launch)["LMCACHE_MAX_LOCAL_CPU_SIZE"] == ("30", True)
    assert env(launch)["PYTHONHASHSEED"] == ("123", True)
    assert launch.config("helm-model-spec") is not None
    assert launch.lmcache_version is not None


def test_production_stack_sizes_that_are_no_whole_numbers_set_nothing() -> None:
    text = SAMPLES["values.yaml"].replace('"30"', '"20Gi"')
    assert "LMCACHE_MAX_LOCAL_CPU_SIZE" not in env(only(document("values.yaml", text)))


def test_the_operators_runtime() -> None:
    found = document(
        "r.yaml",
        """
        apiVersion: production-stack.vllm.ai/v1alpha1
        kind: VLLMRuntime
        metadata: {name: r}
        spec:
          model: {modelURL: org/m}
          vllmConfig: {tensorParallelSize: 2, extraArgs: ["--cpu-offload-gb", "4"]}
          lmCacheConfig: {enabled: true, cpuOffloadingBufferSize: "15", diskOffloadingBufferSize: "10"}
        """,
    )
    launch = only(found)
    assert flags(launch)["--cpu-offload-gb"] == "4"
    assert env(launch)["LMCACHE_LOCAL_DISK"] == ("True", True)


def test_other_charts_argument_lists() -> None:
    found = document(
        "values.yaml",
        """
        decode:
          image: {repository: vllm/vllm-openai, tag: v0.28.0}
          extraArgs: ["--kv-offloading-size", "8"]
        """,
    )
    launch = only(found)
    assert flags(launch) == {"--kv-offloading-size": "8"}
    assert not launch.complete
    assert launch.vllm_version is not None


def test_templates_are_unresolved_and_never_a_crash() -> None:
    found = document("templates/deploy.yaml", SAMPLES["templates/deploy.yaml"])
    launch = only(found)
    assert not launch.complete
    size = launch.flag("--kv-offloading-size")
    assert size is not None
    assert size.value is not None
    assert size.value.certainty == "unresolved"
    assert size.location.line == 13
    assert found.unresolved[0].location.line == 8


def test_json6902_and_inline_patches() -> None:
    direct = only(document("patch.yaml", SAMPLES["patch.yaml"]))
    assert flags(direct) == {"--kv-offloading-size": "8"}
    assert not direct.complete
    inline = document("kustomization.yaml", SAMPLES["kustomization.yaml"])
    assert flag_lines(only(inline)) == {"--cpu-offload-gb": 7}


def test_ray_serve_config() -> None:
    launch = only(document("serve_config.yaml", SAMPLES["serve_config.yaml"]))
    assert launch.source == "ray"
    assert env(launch) == {"LMCACHE_LOCAL_CPU": ("True", True)}
    config = launch.config("kv-transfer-config")
    assert config is not None
    assert config.node.plain() == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}


def test_vllm_and_lmcache_configuration_files() -> None:
    vllm = document("vllm.yaml", SAMPLES["vllm.yaml"])
    launch = only(vllm)
    assert vllm.reader == "vllm-config-yaml"
    assert flags(launch)["--kv-offloading-size"] == "8"
    tree = launch.config("vllm-config-yaml")
    assert tree is not None
    assert tree.node.plain()["enable_prefix_caching"] is False
    lmcache = document("lmcache.yaml", SAMPLES["lmcache.yaml"])
    assert lmcache.launches == ()
    assert [(c.kind, c.node.plain()["chunk_size"]) for c in lmcache.loose_configs] == [("lmcache-yaml", 256)]


def test_workflow_environment_of_three_levels() -> None:
    launch = only(document(".github/workflows/ci.yml", SAMPLES[".github/workflows/ci.yml"]))
    assert env(launch) == {"LMCACHE_LOCAL_CPU": ("True", True), "A": ("b", True), "C": ("d", True)}
    assert flags(launch) == {"--kv-offloading-size": None}
    assert flag_lines(launch) == {"--kv-offloading-size": 12}
    assert "boot" in [w.text for w in launch.words]


def test_duplicate_keys_are_problems() -> None:
    found = document("lmcache.yaml", "chunk_size: 1\nlocal_cpu: true\nchunk_size: 2\n")
    assert [(p.line, t) for p, t in found.problems] == [
        (3, "duplicate key 'chunk_size': line 1 is overwritten by this one")
    ]


def test_what_precedes_a_syntax_error_is_kept() -> None:
    found = read("x.yaml", SAMPLES["pod.yaml"] + "\n---\na: [1\nb: }\n")
    assert len(found.launches) == 1
    assert any("could not be read to its end" in u.reason for u in found.unresolved)
