KV=$(cat <<'EOF'
{"kv_connector":"OffloadingConnector","kv_role":"kv_both",
 "kv_connector_extra_config":{"cpu_bytes_to_use":16}}
EOF
)
vllm serve m --kv-transfer-config "$KV"
