vllm serve m --kv-offloading-gb 10
