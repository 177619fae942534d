"""A boolean that LMCache takes for false.

Only `true` and `1` are true to LMCache, in any case. `yes`, `on`, `y` and the empty string are false, without a message.

Bad:

```sh run.sh
export LMCACHE_LOCAL_CPU=yes
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export LMCACHE_LOCAL_CPU=True
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    FALSE_WORDS,
    OTHER_TRUE_WORDS,
    TRUE_WORDS,
)
from pytest_kvoffload.lint.rule import Rule
from pytest_kvoffload.lint.rules.kvo405_lmcache_bad_number import all_settings

RULE = Rule(
    code="KVO406",
    name="lmcache-bad-boolean",
    severity="error",
    loose=True,
    products=("vllm", "sglang", "unknown"),
    summary="yes, on and the like are false to LMCache",
    remedy="write True or False",
    evidence="LMCache config_base.py _to_bool 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report boolean settings whose text is neither true nor plainly false."""
    kinds = catalog.lmcache_keys()
    for setting in all_settings(context):
        if kinds.get(setting.key) != "bool" or setting.text is None:
            continue
        if setting.node is not None and setting.node.kind == "boolean":
            continue
        word = setting.text.strip().lower()
        if word in TRUE_WORDS or (word in FALSE_WORDS and word):
            continue
        meant = word in OTHER_TRUE_WORDS
        shown = repr(setting.text) if word else "empty"
        yield RULE.at(
            setting.location,
            f"{setting.name} is {shown}: only true and 1 are true here, so it is false",
            severity=None if meant or word else "warning",
        )
