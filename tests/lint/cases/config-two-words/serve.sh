vllm serve --config serve.yaml --port 8000
