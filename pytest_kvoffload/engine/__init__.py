"""Launching, attaching to and stopping a real vLLM."""
