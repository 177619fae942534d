lmcache server --l1-size-gb 60 &
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'
