"""A variable with a misspelt LMCache prefix.

LMCache reads `LMCACHE_*`. `LM_CACHE_CHUNK_SIZE` and its like are read by nobody, and nothing says so.

Bad:

```sh run.sh
export LM_CACHE_CHUNK_SIZE=256
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export LMCACHE_CHUNK_SIZE=256
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule
from pytest_kvoffload.lint.rules.kvo202_retired_connector import replace_text

PREFIX = re.compile(
    r"(?:LM_CACHE|LMCAHCE|LMCACH|LCMACHE|LMCHACHE|LMCACHES|LMC|LM-CACHE|VLLM_LMCACHE|LMCACE|MLCACHE)_", re.IGNORECASE
)
RULE = Rule(
    code="KVO401",
    name="env-prefix",
    severity="error",
    fixable=True,
    loose=True,
    products=("vllm", "sglang", "unknown"),
    summary="LM_CACHE_ and its like: only LMCACHE_ is read",
    remedy="write the name with the prefix LMCACHE_",
    evidence="LMCache config_base.py 0.5.6; LMCache issue 419",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report names that are an LMCache setting but for their prefix."""
    known = catalog.lmcache_environment()
    for variable in launch.env:
        if variable.name in known:
            continue
        match = PREFIX.match(variable.name)
        lower = variable.name != variable.name.upper() and variable.name.upper() in known
        if match is None and not lower:
            continue
        rest = variable.name.upper() if match is None else "LMCACHE_" + variable.name[match.end() :].upper()
        real = _closest(rest, known)
        strange = variable.name.upper().startswith(("LM_CACHE_", "LMCACHE_"))
        if real is None and not strange:
            continue
        hint = f": did you mean {real}?" if real else ""
        exact = real is not None and real == rest
        yield RULE.at(
            variable.location,
            f"nothing reads {variable.name}{hint}",
            remedy=f"write {real}" if real else None,
            severity=None if real or context.has_connector else "warning",
            fix=replace_text(document, variable.location, variable.name, real) if exact and real else (),
        )


def _closest(name: str, known: frozenset[str]) -> str | None:
    if name in known:
        return name
    renamed = catalog.LMCACHE_ENV_RETIRED.get(name)
    if renamed:
        return renamed
    hint = did_you_mean(name, known, cutoff=0.8)
    return hint.split("'")[1] if hint else None
