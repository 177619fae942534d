vllm serve m --kv-offloading-size 16 --no-enable-prefix-caching
