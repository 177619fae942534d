from vllm import LLM

# the model does not fit on the card: keep part of its weights in host memory
llm = LLM(model="meta-llama/Llama-3.1-70B-Instruct", cpu_offload_gb=60)
