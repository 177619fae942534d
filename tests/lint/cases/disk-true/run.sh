export PYTHONHASHSEED=0
export LMCACHE_LOCAL_DISK=True
export LMCACHE_MAX_LOCAL_DISK_SIZE=50
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
