docker run --gpus all vllm/vllm-openai:v0.9.2 --model m --swap-space 16
