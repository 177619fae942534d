PYTHONHASHSEED=0 vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both","kv_connector_extra_config":{"chunk_size":512}}'
