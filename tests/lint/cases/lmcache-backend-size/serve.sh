vllm serve m --kv-offloading-backend lmcache --kv-offloading-size 80
