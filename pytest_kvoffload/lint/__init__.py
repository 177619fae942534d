"""Static checks of KV-offload configuration."""
