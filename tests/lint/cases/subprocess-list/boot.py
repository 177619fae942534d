import subprocess

subprocess.Popen(["vllm", "serve", "m", "--swap-space", "8"])
