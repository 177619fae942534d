vllm serve m \
  --max-model-len 8192
  --kv-offloading-size 32 \
  --port 8000
