from vllm import AsyncEngineArgs
from vllm.config import KVTransferConfig

args = AsyncEngineArgs(
    model="m",
    kv_transfer_config=KVTransferConfig(kv_connector="NixlConnector"),
)
