ARGS=(m --max-model-len 4096)
ARGS+=(--kv-offloading-size 40)
ARGS+=(--cpu-offload-gb 40)
vllm serve "${ARGS[@]}"
