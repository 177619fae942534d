docker run --ipc=host vllm/vllm-openai:v0.32.0 --model m --prefix-caching-hash-algo xxhash --kv-transfer-config \
  '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"secondary_tiers":[{"type":"fs","root_dir":"/kv"}]}}'
