vllm serve m --kv-offloading-size 34359738368
