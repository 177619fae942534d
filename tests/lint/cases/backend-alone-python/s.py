from vllm import LLM

llm = LLM(model="m", kv_offloading_backend="native")
