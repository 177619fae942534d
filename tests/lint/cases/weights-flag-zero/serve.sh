vllm serve Qwen/Qwen3-8B --kv-offloading-size 40 --cpu-offload-gb 0
