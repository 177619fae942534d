docker run --ipc=host -e PYTHONHASHSEED=0 vllm/vllm-openai:v0.29.0 --model m --kv-transfer-config \
 '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":8589934592,"backpressure":{"backpressure_cls":"x"},"secondary_tiers":[{"type":"fs","root_dir":"/kv"}]}}'
