from vllm import LLM

llm = LLM(
    model="m",
    kv_transfer_config={
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 32},
    },
)
