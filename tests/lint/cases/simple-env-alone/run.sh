export VLLM_USE_SIMPLE_KV_OFFLOAD=1
vllm serve m --kv-offloading-backend native --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
