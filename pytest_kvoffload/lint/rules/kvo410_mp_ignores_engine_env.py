"""Engine variables beside MP mode.

`LMCacheMPConnector` talks to an `lmcache server`. The server takes flags (`--l1-size-gb`, `--chunk-size`), and the
`LMCACHE_*` variables of the in-process engine are read by neither side.

Bad:

```sh run.sh
export LMCACHE_MAX_LOCAL_CPU_SIZE=80
lmcache server --l1-size-gb 20 --eviction-policy LRU &
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'
```

Good:

```sh run.sh
lmcache server --l1-size-gb 80 --eviction-policy LRU &
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheMPConnector","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

INSTEAD = {
    "max_local_cpu_size": "--l1-size-gb (GiB, in total)",
    "chunk_size": "--chunk-size",
    "local_disk": '--l2-adapter \'{"type":"fs","base_path":"/path"}\'',
    "max_local_disk_size": "--l2-adapter",
    "cache_policy": "--eviction-policy",
    "remote_url": "--l2-adapter",
}
RULE = Rule(
    code="KVO410",
    name="mp-ignores-engine-env",
    severity="error",
    summary="LMCACHE_ engine variables beside LMCacheMPConnector are read by nobody",
    remedy="give the setting to the lmcache server as a flag",
    evidence="LMCache 0.5.6, measured: the MP connector and server read no engine variable",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report engine variables of a launch whose only LMCache connector is MP."""
    if not context.lmcache_mp or context.lmcache_in_process:
        return
    keys = catalog.lmcache_keys()
    other = any(u.name == "LMCacheConnectorV1" for u in context.uses)
    for variable in launch.env:
        key = variable.name[len("LMCACHE_") :].lower() if variable.name.startswith("LMCACHE_") else ""
        named = variable.name == "LMCACHE_CONFIG_FILE"
        if (key not in keys and not named) or key in {"extra_config", "mp_host", "mp_port"} or other:
            continue
        if not variable.reaches:
            continue
        flag = INSTEAD.get(key)
        yield RULE.at(
            variable.location,
            f"MP mode ignores {variable.name}: only the flags of the lmcache server count",
            remedy=f"give the lmcache server {flag}" if flag else None,
        )
