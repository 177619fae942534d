"""A shell variable that is assigned and never exported.

Without `export` (or a place in front of the command) the variable stays in the shell: the server never sees it and
runs with defaults.

Bad:

```sh run.sh
LMCACHE_CONFIG_FILE=cfg.yaml
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
export LMCACHE_CONFIG_FILE=cfg.yaml
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Edit, Launch
from pytest_kvoffload.lint.rule import Rule

OTHERS = {
    "PYTHONHASHSEED",
    "VLLM_USE_SIMPLE_KV_OFFLOAD",
    "PROMETHEUS_MULTIPROC_DIR",
    "NIXL_TELEMETRY_ENABLE",
    "VLLM_SERVER_DEV_MODE",
    "LMCACHE_CONFIG_FILE",
}
RULE = Rule(
    code="KVO404",
    name="env-not-exported",
    severity="error",
    fixable=True,
    products=("vllm", "sglang"),
    summary="A variable that the server reads is assigned but not exported",
    remedy="write export in front of it",
    evidence="LMCache issue 1244",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report assignments that stop at the shell and are used for nothing else there."""
    known = catalog.lmcache_environment() | OTHERS
    reaching = {v.name for v in launch.env if v.reaches}
    for variable in launch.env:
        name = variable.name
        misspelt = name.startswith(("LMCACHE_", "LM_CACHE_")) and context.lmcache_in_process
        if variable.reaches or name in reaching or not (name in known or misspelt):
            continue
        if re.search(rf"\$\{{?{re.escape(name)}\b", document.text):
            continue
        if not (context.has_connector or name.startswith("LMCACHE_")):
            continue
        yield RULE.at(
            variable.location,
            f"{name} is assigned but not exported: the server never sees it",
            fix=(
                Edit(
                    location=variable.location,
                    end_line=variable.location.line,
                    end_column=variable.location.column,
                    replacement="export ",
                ),
            ),
        )
