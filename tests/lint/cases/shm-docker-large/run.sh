docker run --gpus all --shm-size=80g vllm/vllm-openai:v0.29.0 --model m --kv-offloading-size 64
