echo "usage: vllm serve m --swap-space 4 --kv-offloading-backend native"
vllm serve m --kv-offloading-size 8
