LMCACHE_CONFIG_FILE=cfg.yaml
PYTHONHASHSEED=0
export LMCACHE_CONFIG_FILE PYTHONHASHSEED
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
