export PYTHONHASHSEED=0
export LMCACHE_REMOTE_URL=redis://:s3cr3tpw@redis:6379
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
