export LMCACHE_LOG_LEVEL=DEBUG LMCACHE_TRACK_USAGE=false
lmcache server --l1-size-gb 60 --eviction-policy LRU &
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'
