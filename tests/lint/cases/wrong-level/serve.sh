vllm serve m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both","lazy_offload":true,"kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
