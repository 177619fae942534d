vllm serve m --kv-transfer-config '{"kv_connector":"AcmeConnector","kv_role":"kv_both","kv_connector_module_path":"acme.kv","kv_connector_extra_config":{"whatever":"false"}}'
