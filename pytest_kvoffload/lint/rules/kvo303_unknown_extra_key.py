"""A key of `kv_connector_extra_config` that nothing reads.

The extra configuration is never validated: a misspelt or misplaced key is dropped without a word, and the tier runs
with defaults or not at all. A key that is close to a real one is an error, any other unknown key of a connector
whose keys are all known a warning.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"eviction_polcy":"arc"}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"eviction_policy":"arc"}}'
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
    code="KVO303",
    name="unknown-extra-key",
    severity="error",
    summary="A key of kv_connector_extra_config that the connector never reads",
    remedy="use a key that the connector reads",
    evidence="vLLM v1/kv_offload, simple_cpu_offload_connector.py 0.26-0.33: measured, no check at all",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report keys that no code of the connector reads."""
    for use in context.uses:
        if use.extra is None or not use.entry.get("closed") or use.own_spec or (use.child and use.name is None):
            continue
        known = set(use.entry["extra"])
        renamed = catalog.curated()["renamed_extra"].get(use.name, {})
        for member in use.extra.members:
            key = member.key
            if key in known or key in renamed or key.startswith(("lmcache.", "_")) or not key:
                continue
            if key in catalog.vllm_transfer_keys():
                yield RULE.at(
                    member.location,
                    f"{key!r} stands one level too deep: nothing reads it inside kv_connector_extra_config",
                    remedy=f'move "{key}" up, beside "kv_connector"',
                )
                continue
            hint = did_you_mean(key, known, cutoff=0.75)
            others = [n for n, e in catalog.curated()["connectors"].items() if key in e["extra"]]
            more = f" (it is a key of {others[0]})" if others and not hint else ""
            yield RULE.at(
                member.location,
                f"{use.name} never reads {key!r}{hint}{more}: it is dropped without a word",
                severity=None if hint or others else "warning",
                confidence=None if hint or others else "medium",
            )
