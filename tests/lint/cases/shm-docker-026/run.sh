docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.26.0 --model m --kv-offloading-size 32
