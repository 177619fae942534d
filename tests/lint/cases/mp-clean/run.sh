lmcache server --l1-size-gb 60 --eviction-policy LRU --chunk-size 256 &
vllm serve m --tensor-parallel-size 4 --kv-transfer-config '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both","kv_connector_extra_config":{"lmcache.mp.host":"tcp://localhost","lmcache.mp.port":5555}}'
