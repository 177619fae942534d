LMCACHE_MAX_LOCAL_CPU_SIZE=20 vllm serve m -tp 4 --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
