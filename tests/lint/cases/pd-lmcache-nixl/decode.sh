export LMCACHE_CONFIG_FILE=decoder.yaml
export UCX_TLS=cuda_ipc,cuda_copy,tcp
export VLLM_ENABLE_V1_MULTIPROCESSING=1
PYTHONHASHSEED=0 vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_consumer","kv_connector_extra_config":{"discard_partial_chunks":false,"lmcache_rpc_port":"consumer1"}}'
