vllm serve m --kv-offloading-size 8 --kv-transfer-config '{"kv_connector_extra_config":{"block_size":256}}'
