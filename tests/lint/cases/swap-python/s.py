from vllm import LLM

llm = LLM(model="m", swap_space=8)
