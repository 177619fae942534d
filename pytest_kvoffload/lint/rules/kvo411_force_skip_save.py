"""`LMCACHE_FORCE_SKIP_SAVE` with any text at all.

The variable is on as soon as it is not empty: `False` and `0` switch it on too, and then nothing is ever stored.

Bad:

```sh run.sh
export LMCACHE_FORCE_SKIP_SAVE=False
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
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
    code="KVO411",
    name="force-skip-save",
    severity="error",
    loose=True,
    products=("vllm", "sglang", "unknown"),
    summary="LMCACHE_FORCE_SKIP_SAVE is on whatever its text: nothing is stored",
    remedy="unset LMCACHE_FORCE_SKIP_SAVE",
    evidence="LMCache vllm_v1_adapter.py 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the variable: an error when its text says off."""
    for variable in launch.env:
        text = known_text(variable.value)
        if variable.name != "LMCACHE_FORCE_SKIP_SAVE" or not text or not variable.reaches:
            continue
        off = text.strip().lower() in {"false", "0", "no", "off"}
        yield RULE.at(
            variable.location,
            f"LMCACHE_FORCE_SKIP_SAVE={text} skips every store" + (": any text switches it on" if off else ""),
            severity=None if off else "note",
        )
