PYTHONHASHSEED=0 VLLM_NIXL_SIDE_CHANNEL_PORT=5600 vllm serve m --tensor-parallel-size 2 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_buffer_device":"cuda","kv_load_failure_policy":"fail","kv_connector_extra_config":{"backends":["UCX"]}}'
