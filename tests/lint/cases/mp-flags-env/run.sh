export LMCACHE_CHUNK_SIZE=512
lmcache server --l1-size-gb 60 --eviction-policy LRU &
vllm serve m --kv-offloading-backend lmcache --kv-offloading-size 60
