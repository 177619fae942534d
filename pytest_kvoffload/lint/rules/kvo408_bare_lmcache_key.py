"""An LMCache setting without its prefix.

`LOCAL_CPU=True` is nobody's variable; LMCache reads `LMCACHE_LOCAL_CPU`.

Bad:

```sh run.sh
export MAX_LOCAL_CPU_SIZE=20
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export LMCACHE_MAX_LOCAL_CPU_SIZE=20
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

CERTAIN = {"LOCAL_CPU", "MAX_LOCAL_CPU_SIZE", "LOCAL_DISK", "MAX_LOCAL_DISK_SIZE", "REMOTE_SERDE", "SAVE_UNFULL_CHUNK"}
RULE = Rule(
    code="KVO408",
    name="bare-lmcache-key",
    severity="error",
    products=("vllm", "sglang"),
    summary="An LMCache setting without the LMCACHE_ prefix",
    remedy="write the name with the prefix LMCACHE_",
    evidence="LMCache config_base.py 0.5.6",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report bare keys in capitals that reach a server with LMCache and are used for nothing else."""
    if not (context.lmcache_in_process or any(v.name == "LMCACHE_CONFIG_FILE" for v in launch.env)):
        return
    for variable in launch.env:
        name = variable.name
        if name not in CERTAIN and not (name == "CHUNK_SIZE" and variable.reaches):
            continue
        if re.search(rf"\$\{{?{name}\b", document.text):
            continue
        yield RULE.at(
            variable.location,
            f"nothing reads {name}: LMCache wants LMCACHE_{name}",
            remedy=f"write LMCACHE_{name}",
            severity=None if name in CERTAIN else "warning",
        )
