LMCACHE_VERSION=0.5.6
LMCACHE_PORT=6555
export LMCACHE_DIR=/opt/lmcache
pip install lmcache==$LMCACHE_VERSION
lmcache server --port $LMCACHE_PORT --l1-size-gb 10 --eviction-policy LRU &
vllm serve m --kv-transfer-config "{\"kv_connector\":\"LMCacheMPConnector\",\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":{\"lmcache.mp.port\":$LMCACHE_PORT}}"
