vllm serve m --kv-transfer-config.kv_connector LMCacheConnectorV1
