"""A size or count that LMCache cannot read.

`20Gi`, `5GB` or `abc` become `None`, not the default: LMCache fails to start inside the worker, and vLLM serves on
without it, healthy and with zero hits. Sizes are plain numbers in GiB, chunk sizes whole tokens.

Bad:

```sh run.sh
export LMCACHE_MAX_LOCAL_CPU_SIZE=20Gi
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

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    GIB,
    looks_like_size,
    plain_number,
)
from pytest_kvoffload.lint.parts import Setting
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO405",
    name="lmcache-bad-number",
    severity="error",
    loose=True,
    products=("vllm", "sglang", "unknown"),
    summary="A number that LMCache cannot read switches it off in silence",
    remedy="write a plain number: sizes in GiB, chunk_size in tokens",
    evidence="LMCache config_base.py 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report settings of numeric type that ``int`` or ``float`` refuses, and impossible ones."""
    kinds = catalog.lmcache_keys()
    for setting in all_settings(context):
        kind = kinds.get(setting.key, "").removeprefix("Optional[").removesuffix("]")
        if kind not in {"int", "float"} or setting.text is None or setting.origin == "chart":
            continue
        text = setting.text.strip()
        number = plain_number(text)
        readable = isinstance(number, int) if kind == "int" and setting.origin == "env" else number is not None
        if not readable:
            unit = f" ({_gib(text)} GiB)" if kind == "float" and looks_like_size(text) and _gib(text) else ""
            yield RULE.at(
                setting.location,
                f"{setting.name} is {text!r}: not {'a whole number' if kind == 'int' else 'a number'}, it becomes None "
                "and LMCache switches itself off without an error",
                remedy=f"write a plain number{unit}" if unit else None,
            )
        elif number is not None and (number < 0 or (number == 0 and setting.key == "chunk_size")):
            yield RULE.at(setting.location, f"{setting.name} is {text}: LMCache accepts it and cannot work with it")


def all_settings(context: Context) -> Iterator[Setting]:
    """Yield every LMCache setting of the launch, overridden ones included."""
    from pytest_kvoffload.lint.parts import lmcache_settings

    yield from lmcache_settings(context.launch, context.uses)


def _gib(text: str) -> str:
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])(i?)", text, re.IGNORECASE)
    if match is None:
        return ""
    power = {"k": 1, "m": 2, "g": 3, "t": 4}[match.group(2).lower()]
    return f"{float(match.group(1)) * 1024**power / GIB:.4g}"
