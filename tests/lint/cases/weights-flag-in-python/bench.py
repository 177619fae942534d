from vllm import LLM
from vllm.config import KVTransferConfig

ktc = KVTransferConfig(kv_connector="LMCacheConnectorV1", kv_role="kv_both")
llm = LLM(
    model="Qwen/Qwen3-8B",
    cpu_offload_gb=20,
    kv_transfer_config=ktc,
)
