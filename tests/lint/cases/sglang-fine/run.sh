python3 -m sglang.launch_server --model-path m --page-size 64 --enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through --hicache-storage-backend file
