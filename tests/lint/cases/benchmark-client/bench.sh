vllm bench serve --model m --dataset-name random --num-prompts 100
