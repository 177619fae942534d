set -a
LMCACHE_CONFIG_FILE=cfg.yaml
PYTHONHASHSEED=0
set +a
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
