vllm serve m --kv-transfer-config '{"kv_connector":"AscendStoreConnector","kv_role":"kv_both","kv_connector_module_path":"vllm_ascend.distributed.kv_transfer"}'
