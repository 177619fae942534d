# push 10 GB of weights to the host to leave more room for the KV cache
vllm serve Qwen/Qwen3-32B --cpu-offload-gb 10
