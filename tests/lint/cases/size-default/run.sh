docker run --gpus all --ipc=host -m 128g vllm/vllm-openai:v0.30.0 --model m --kv-offloading-size ${SIZE:-200}
