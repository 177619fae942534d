ARGS=(
  --model m
  # --cpu-offload-gb 40
  --kv-offloading-size 40
)
vllm serve "${ARGS[@]}"
