# --cpu-offload-gb frees VRAM so that a longer context fits
vllm serve meta-llama/Llama-3.1-70B-Instruct --cpu-offload-gb 40 --max-model-len 32768
