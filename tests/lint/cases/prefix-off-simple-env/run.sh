export VLLM_USE_SIMPLE_KV_OFFLOAD=1
vllm serve m --kv-offloading-size 16 --no-enable-prefix-caching
