"""One small file of every format, and helpers to look at what was read."""

from __future__ import annotations

import textwrap

from pytest_kvoffload.lint.model import Document, Launch
from pytest_kvoffload.lint.sources import read

KV = '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",' + (
    '"kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
)


def document(path: str, text: str, *, markdown: bool = False) -> Document:
    """Read dedented text."""
    return read(path, textwrap.dedent(text).lstrip("\n"), markdown=markdown)


def only(found: Document) -> Launch:
    """Return the single launch of a document."""
    assert len(found.launches) == 1, found.launches
    return found.launches[0]


def flags(launch: Launch) -> dict[str, str | None]:
    """Return flag names with their texts."""
    return {flag.name: None if flag.value is None else flag.value.text for flag in launch.flags}


def flag_lines(launch: Launch) -> dict[str, int]:
    """Return flag names with the line where each stands."""
    return {flag.name: flag.location.line for flag in launch.flags}


def env(launch: Launch) -> dict[str, tuple[str | None, bool]]:
    """Return variables with their text and whether the server sees them."""
    return {variable.name: (variable.value.text, variable.reaches) for variable in launch.env}


def at(found: Document, line: int, column: int) -> str:
    """Return the rest of a line from a 1-based column, to check that a place is where its thing stands."""
    return found.text.splitlines()[line - 1][column - 1 :]


SAMPLES: dict[str, str] = {
    "serve.sh": f"""#!/bin/bash
# keep sessions in host memory
export LMCACHE_CHUNK_SIZE=256
ARGS=(--max-model-len "${{MAX:-4096}}")
if [ -n "$KV" ]; then
  ARGS+=(--kv-transfer-config '{KV}')
fi
start() {{ vllm serve "$1" "${{ARGS[@]}}" "$@" & }}
case $1 in a) start m;; *) docker run --rm -e A=b --shm-size 8g vllm/vllm-openai:v0.28.0 --model m;; esac
cat <<EOF > lmc.yaml
chunk_size: $LMCACHE_CHUNK_SIZE
EOF
for s in 1 2; do LMCACHE_CONFIG_FILE=lmc.yaml vllm serve m --kv-offloading-size $((s * 4)); done
""",
    "job.sbatch": """#!/bin/bash
#SBATCH --job-name=kv-offload
#SBATCH --mem=200G
srun --export=ALL,LMCACHE_LOCAL_CPU=True python -m vllm.entrypoints.openai.api_server --model m --cpu-offload-gb 4
""",
    "vllm.service": """[Unit]
Description=KV tier
[Service]
Environment="LMCACHE_LOCAL_CPU=True" MODEL=m
LimitMEMLOCK=infinity
ExecStart=/opt/bin/vllm serve ${MODEL} \\
    --kv-offloading-size 20
""",
    "Dockerfile": """ARG V=v0.28.0
FROM vllm/vllm-openai:${V}
ENV A=1 LMCACHE_CHUNK_SIZE=256
RUN pip install lmcache==0.5.6
ENTRYPOINT ["vllm", "serve"]
CMD ["m", "--kv-offloading-size", "4"]
""",
    "docker-compose.yml": """x-base: &base
  shm_size: 8gb
  ipc: host
services:
  vllm:
    <<: *base
    image: vllm/vllm-openai:${TAG:-v0.28.0}
    environment:
      - LMCACHE_LOCAL_CPU=True
    command: >
      --model m
      --kv-offloading-size ${SIZE:-16}
    deploy: {resources: {limits: {memory: 64g}}}
""",
    "pod.yaml": f"""apiVersion: v1
kind: Pod
metadata: {{name: vllm}}
spec:
  containers:
    - name: vllm
      image: vllm/vllm-openai:v0.28.0
      command: ["/bin/sh", "-c"]
      args:
        - |
          export LMCACHE_CHUNK_SIZE=16
          exec vllm serve $(MODEL) \\
            --kv-transfer-config '{KV}'
      env:
        - {{name: MODEL, value: m}}
      volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
      resources: {{limits: {{memory: 64Gi}}}}
  volumes:
    - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: 8Gi}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: c}}
data:
  lmcache.yaml: |
    chunk_size: 256
""",
    "values.yaml": """servingEngineSpec:
  modelSpec:
    - name: m
      repository: lmcache/vllm-openai
      tag: v0.5.6
      modelURL: org/m
      vllmConfig: {tensorParallelSize: 2, extraArgs: ["--max-num-seqs", "8"]}
      lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: "30"}
""",
    "templates/deploy.yaml": """apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: vllm
          image: "{{ .Values.image }}:{{ .Values.tag }}"
          args:
            {{- range .Values.args }}
            - {{ . | quote }}
            {{- end }}
            - --kv-offloading-size={{ .Values.size }}
""",
    "patch.yaml": """- op: add
  path: /spec/template/spec/containers/0/args/-
  value: --kv-offloading-size=8
""",
    "kustomization.yaml": """kind: Kustomization
patches:
  - target: {kind: Deployment}
    patch: |-
      - op: add
        path: /spec/template/spec/containers/0/args/-
        value: --cpu-offload-gb=8
""",
    "serve_config.yaml": """applications:
  - args:
      llm_configs:
        - model_loading_config: {model_id: m}
          engine_kwargs:
            kv_transfer_config: {kv_connector: LMCacheConnectorV1, kv_role: kv_both}
          runtime_env: {env_vars: {LMCACHE_LOCAL_CPU: "True"}}
""",
    "vllm.yaml": """model: m
kv-offloading-size: 8
enable_prefix_caching: false
kv-transfer-config: {kv_connector: OffloadingConnector, kv_role: kv_both}
""",
    "lmcache.yaml": "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 20\n",
    ".github/workflows/ci.yml": """name: KV
on: push
env: {LMCACHE_LOCAL_CPU: "True"}
jobs:
  test:
    env: {A: b}
    steps:
      - name: boot
        env: {C: d}
        run: |
          vllm serve m \\
            --kv-offloading-size ${{ inputs.size }}
""",
    "run.py": """import os, subprocess
from vllm import LLM
from vllm.config import KVTransferConfig
os.environ["LMCACHE_CHUNK_SIZE"] = "256"
cfg = KVTransferConfig(kv_connector="LMCacheConnectorV1", kv_role="kv_both")
llm = LLM(model="m", kv_transfer_config=cfg, cpu_offload_gb=4)
cmd = ["vllm", "serve", "m"]
cmd += ["--kv-offloading-size", f"{8}"]
subprocess.run(cmd, env={**os.environ, "A": "b"})
subprocess.run("vllm serve m --swap-space 4", shell=True)
""",
    "notes.md": """# Notes
```bash
$ vllm serve m \\
    --cpu-offload-gb 4
```
""",
    "cells.ipynb": '{"cells":[{"cell_type":"code","source":["!vllm serve m \\\\\\n","  --cpu-offload-gb 4\\n"]}]}',
    "kvoffload.toml": """[connectors.native]
kind = "native"
size_gib = 2
[connectors.own]
kind = "raw"
kv_transfer_config = { kv_connector = "LMCacheConnectorV1", kv_role = "kv_both" }
""",
    "pyproject.toml": '[project]\ndependencies = ["vllm==0.28.0"]\n',
    ".env": "LMCACHE_CHUNK_SIZE=256 # tokens\nexport LMCACHE_LOCAL_CPU='True'\n",
    "requirements.txt": "vllm==0.28.0\nlmcache[x]~=0.5.6 ; python_version > '3.9'\n",
    "kv.json": KV,
    "sglang.sh": "python -m sglang.launch_server --model-path m --enable-hierarchical-cache --hicache-ratio 2\n",
}
"""File name to text: what the fuzz mutates."""
