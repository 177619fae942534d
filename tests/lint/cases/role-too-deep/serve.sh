vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"kv_role":"kv_both","cpu_bytes_to_use":8589934592}}'
