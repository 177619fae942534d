from vllm import LLM
from vllm.config import KVTransferConfig

llm = LLM(
    model="m",
    enable_prefix_caching=False,
    kv_transfer_config=KVTransferConfig(
        kv_connector="SimpleCPUOffloadConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 8 * 1024**3},
    ),
)
