from ray.serve.llm import LLMConfig

config = LLMConfig(
    model_loading_config={"model_id": "m"},
    engine_kwargs={
        "kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"},
    },
)
