export LOCAL_CPU=True
export MAX_LOCAL_CPU_SIZE=20
PYTHONHASHSEED=0 vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
