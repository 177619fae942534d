"""An `LMCACHE_*` variable that nothing reads.

LMCache looks only for the names it knows; a misspelt one is never looked at and never mentioned. A name close to a
real one is an error, another unknown name a warning where LMCache is in use.

Bad:

```sh run.sh
export LMCACHE_MAX_LOCAL_CPU_SIZES=20
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
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

OPEN = ("LMCACHE_EC_", "LMCACHE_EXTRA_CONFIG_", "LMCACHE_PLUGIN_", "LMCACHE_RUNTIME_PLUGIN_")
OWN = re.compile(
    r"_(?:VERSION|IMAGE|TAG|REPO|BRANCH|COMMIT|REF|SHA|DIR|HOME|PATH|PORT|PID|LOG|LOG_FILE|URL|HOST|NAME|NAMESPACE|CMD|ARGS"
    r"|OPTS|FLAGS|CONFIG|CONFIG_PATH|YAML|CONNECTOR|JSON|ENABLED|SRC|WHEEL|INSTALL|BUILD|TEST|MODE|ENV|PKG|PACKAGE)\Z"
)
RULE = Rule(
    code="KVO402",
    name="unknown-lmcache-env",
    severity="error",
    loose=True,
    products=("vllm", "sglang", "unknown"),
    summary="An LMCACHE_ variable that LMCache does not read",
    remedy="use a name that LMCache reads: LMCACHE_ and the key in capitals",
    evidence="LMCache config_base.py 0.5.6: only known names are looked up",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report unknown names; a script's own variables and other programs' are left alone."""
    known = catalog.lmcache_environment()
    used = context.lmcache_in_process or launch.product == "sglang"
    for variable in launch.env:
        name = variable.name
        if not name.startswith("LMCACHE_") or name in known or name.startswith(OPEN):
            continue
        if (
            name in catalog.LMCACHE_ENV_RETIRED
            or not variable.reaches
            or f"${name}" in document.text
            or f"${{{name}" in document.text
        ):
            continue
        hint = did_you_mean(name, known, cutoff=0.88)
        if hint and (used or launch.product == "unknown") and not OWN.search(name):
            yield RULE.at(variable.location, f"LMCache reads no variable {name}{hint}")
        elif used and not OWN.search(name):
            yield RULE.at(
                variable.location,
                f"LMCache reads no variable {name}{did_you_mean(name, known, cutoff=0.75)}",
                severity="warning",
                confidence="medium",
            )
