"""Tests and gates for vLLM KV-cache offload."""
