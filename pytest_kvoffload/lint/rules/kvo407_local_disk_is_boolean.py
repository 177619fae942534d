"""A boolean where LMCache wants a directory.

`LMCACHE_LOCAL_DISK` is a path (or `file://` and a path). `True` writes the cache into a directory called `True` under the
server's working directory.

Bad:

```sh run.sh
export PYTHONHASHSEED=0
export LMCACHE_LOCAL_DISK=True
export LMCACHE_MAX_LOCAL_DISK_SIZE=100
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

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule
from pytest_kvoffload.lint.rules.kvo405_lmcache_bad_number import all_settings

WORDS = {"true", "false", "yes", "no", "on", "off", "1", "0"}
RULE = Rule(
    code="KVO407",
    name="local-disk-is-boolean",
    severity="error",
    loose=True,
    products=("vllm", "sglang", "unknown"),
    summary="LMCACHE_LOCAL_DISK is a path: True makes a directory called True",
    remedy="write the directory, such as /data/kv, or leave the setting out to have no disk tier",
    evidence="LMCache config.py _parse_local_disk 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report booleans given as the disk path."""
    for setting in all_settings(context):
        if setting.key != "local_disk" or setting.text is None:
            continue
        if setting.text.strip().lower() in WORDS:
            yield RULE.at(
                setting.location,
                f"{setting.name} is a directory, not a switch: the cache goes to ./{setting.text.strip()}/",
            )
        elif re.match(r"file:/(?!/)", setting.text):
            yield RULE.at(setting.location, f"{setting.name} {setting.text!r}: the scheme is file:// and then the path")
