python -m sglang.launch_server --model-path m --hicache-size 100
