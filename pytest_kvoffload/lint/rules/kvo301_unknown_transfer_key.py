"""A key of `--kv-transfer-config` that vLLM does not have.

The top level is checked: an unknown key is an error at boot (`unexpected keyword argument`). Sizes and other options
of a connector belong one level down, into `kv_connector_extra_config`.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","cpu_bytes_to_use":8589934592}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
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
    code="KVO301",
    name="unknown-transfer-key",
    severity="error",
    summary="A key of kv-transfer-config that vLLM does not have, or that belongs one level down",
    remedy="use the keys of KVTransferConfig, and put a connector's options into kv_connector_extra_config",
    evidence="vLLM config/kv_transfer.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report unknown keys beside ``kv_connector``."""
    known = catalog.vllm_transfer_keys()
    for use in context.uses:
        for member in use.node.members:
            if member.key in known or not member.key or member.key.startswith("_kvoffload"):
                continue
            owner = next((n for n, e in catalog.curated()["connectors"].items() if member.key in e["extra"]), None)
            if owner or member.key.startswith("lmcache."):
                yield RULE.at(
                    member.location,
                    f"{member.key!r} stands at the wrong level: vLLM refuses it here",
                    remedy=f'move it into "kv_connector_extra_config": {{"{member.key}": ...}}',
                )
                continue
            hint = did_you_mean(member.key, known)
            yield RULE.at(member.location, f"kv-transfer-config has no key {member.key!r}{hint}: vLLM refuses it")
