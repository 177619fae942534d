vllm serve m --kv-transfer-config "{'kv_connector':'LMCacheConnectorV1','kv_role':'kv_both'}"
