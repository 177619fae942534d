docker run --gpus all --shm-size=8g -e LMCACHE_CONFIG_FILE=/c.yaml -e PYTHONHASHSEED=0 vllm/vllm-openai:v0.30.0 --model m \
  --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_producer","kv_connector_extra_config":{"discard_partial_chunks":false,"lmcache_rpc_port":"producer1"}}'
