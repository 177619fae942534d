docker run --gpus all --ipc=host -v $PWD:/c vllm/vllm-openai:v0.30.0 \
  --config=/c/serve.yaml
