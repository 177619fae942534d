vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"MySpec","spec_module_path":"my.spec","my_option":"x"}}'
