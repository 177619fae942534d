export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
vllm serve m --enable-prefix-caching
