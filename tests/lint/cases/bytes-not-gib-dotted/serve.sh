vllm serve m --kv-transfer-config.kv_connector SimpleCPUOffloadConnector --kv-transfer-config.kv_role kv_both \
  --kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use 40
