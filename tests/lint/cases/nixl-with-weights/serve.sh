# weights do not fit: keep 20 GB of them on the host; disaggregated decode
PYTHONHASHSEED=0 vllm serve m --cpu-offload-gb 20 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
