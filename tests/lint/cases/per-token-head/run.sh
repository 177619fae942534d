docker run --ipc=host vllm/vllm-openai:v0.26.0 --model m --kv-cache-dtype fp8_per_token_head --kv-offloading-size 8
