export LMCACHE_USE_EXPERIMENTAL=True PYTHONHASHSEED=0
export LMCACHE_INSTANCE_ID=a
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
