"""A key of an LMCache file that LMCache does not have.

An unknown key is dropped with one warning in the log. A few old names are listed as aliases but their values are lost.

Bad:

```yaml lmcache_config.yaml
chunk_size: 256
local_cpu: true
max_local_cpu_sise: 20
```

Good:

```yaml lmcache_config.yaml
chunk_size: 256
local_cpu: true
max_local_cpu_size: 20
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO415",
    name="lmcache-yaml-key",
    severity="error",
    loose=True,
    versions="LMCache 0.5",
    products=("vllm", "sglang", "unknown"),
    summary="An unknown or lost key in an LMCache configuration file",
    remedy="use a key that LMCache has",
    evidence="LMCache config.py, config_base.py 0.5.6, measured",
)
WORKING = {"plugin_locations", "external_backends", "nixl_buffer_size"}


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report keys of the file: close to a real one or renamed is an error, otherwise a warning."""
    keys, aliases = catalog.lmcache_keys(), catalog.lmcache_aliases()
    for config in launch.configs:
        if config.kind != "lmcache-yaml" or config.node.kind != "object":
            continue
        members = config.node.members
        familiar = sum(1 for m in members if m.key in keys or m.key in aliases)
        if familiar < 2 and len(members) > 3:
            continue  # some other program's file
        for member in members:
            key = member.key
            if key in keys or key.startswith("ec_") or not key:
                continue
            if key in aliases:
                lost = key not in WORKING
                yield RULE.at(
                    member.location,
                    f"{key} was renamed {aliases[key]}" + (": the value is lost" if lost else ""),
                    remedy=f"write {aliases[key]}",
                    severity="error" if lost and key not in {"controller_url"} else "warning",
                )
                continue
            bare = key.lower().removeprefix("lmcache_").removeprefix("lmcache.")
            hint = f" (did you mean {bare!r}?)" if bare in keys else did_you_mean(key, keys, cutoff=0.82)
            yield RULE.at(
                member.location, f"LMCache has no key {key!r}{hint}: dropped", severity=None if hint else "warning"
            )
