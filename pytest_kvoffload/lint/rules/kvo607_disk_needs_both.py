"""An LMCache disk tier with half of its settings.

`LMCACHE_LOCAL_DISK` (the path) and `LMCACHE_MAX_LOCAL_DISK_SIZE` (GiB, default 0) are needed together. With one of them
nothing goes to disk, without a message.

Bad:

```sh run.sh
export PYTHONHASHSEED=0
export LMCACHE_LOCAL_DISK=/data/kv
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export PYTHONHASHSEED=0
export LMCACHE_LOCAL_DISK=/data/kv
export LMCACHE_MAX_LOCAL_DISK_SIZE=100
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO607",
    name="disk-needs-both",
    severity="error",
    loose=True,
    products=("vllm", "sglang", "unknown"),
    summary="An LMCache disk path without a size, or a size without a path: no disk tier",
    remedy="set LMCACHE_LOCAL_DISK=/path and LMCACHE_MAX_LOCAL_DISK_SIZE=GIB together",
    evidence="LMCache storage_backend/__init__.py 0.5.6, measured",
)


OTHER_DISKS = {"storage_plugins", "external_backends", "extra_config", "gds_path", "remote_storage_plugins"}
"""Backends that may use the size for a disk of their own."""


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report one half without the other."""
    yaml_only = launch.product == "unknown"
    settings = context.lmcache_settings
    path, size = settings.get("local_disk"), settings.get("max_local_disk_size")
    if yaml_only and any(s.origin == "env" for s in (path, size) if s is not None):
        return  # loose variables may be completed elsewhere
    if not yaml_only and (
        context.lmcache_mp or (context.env_set("LMCACHE_CONFIG_FILE") and launch.config("lmcache-yaml") is None)
    ):
        return
    if (not launch.env_complete and not yaml_only) or context.from_chart:
        return
    if path is not None and path.text and path.text.strip().lower() not in {"", "none", "null", "false"}:
        if size is None:
            yield RULE.at(path.location, f"{path.name} without a size is ignored in silence: nothing goes to disk")
        elif size.number == 0 and size.text is not None:
            yield RULE.at(size.location, f"{size.name} 0 switches the disk tier off in silence")
    elif path is None and size is not None and size.text is not None and (size.number or 0) > 0:
        if OTHER_DISKS & set(settings):
            return
        outside = size.value is not None and size.value.certainty == "default"
        yield RULE.at(
            size.location,
            f"{size.name} without a path does nothing: nothing goes to disk",
            severity="warning" if outside else None,  # what sets the one from outside may set the other
        )
