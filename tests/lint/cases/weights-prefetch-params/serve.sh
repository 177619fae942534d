# layer-wise weight prefetch
vllm serve Qwen/Qwen3-32B --offload-backend prefetch --offload-group-size 8 --offload-num-in-group 2
