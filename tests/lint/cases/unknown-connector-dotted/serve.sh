vllm serve m --kv-transfer-config.kv_connector SimpleCpuOffloadConnector --kv-transfer-config.kv_role kv_both
