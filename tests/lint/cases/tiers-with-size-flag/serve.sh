vllm serve m --kv-offloading-size 8 --kv-transfer-config '{"kv_connector_extra_config":{"secondary_tiers":[{"type":"fs","root_dir":"/kv"}]}}'
