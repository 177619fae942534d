"""Telemetry that is not switched off.

`LMCACHE_TRACK_USAGE` turns telemetry off only as the exact word `false`; `False` and `0` leave it on.

Bad:

```sh run.sh
export LMCACHE_TRACK_USAGE=0
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export LMCACHE_TRACK_USAGE=false
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO412",
    name="track-usage",
    severity="warning",
    loose=True,
    products=("vllm", "sglang", "lmcache-server", "unknown"),
    summary="LMCACHE_TRACK_USAGE is off only as the exact word false",
    remedy="write LMCACHE_TRACK_USAGE=false, or DO_NOT_TRACK=1",
    evidence="LMCache usage_telemetry/identity.py 0.5.6",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report other ways to say no."""
    for variable in launch.env:
        text = known_text(variable.value)
        if variable.name != "LMCACHE_TRACK_USAGE" or text in {None, "false"}:
            continue
        if str(text).strip().lower() in {"false", "0", "no", "off"}:
            yield RULE.at(variable.location, f"LMCACHE_TRACK_USAGE={text} leaves telemetry on")
