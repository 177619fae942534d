"""The hybrid KV cache manager forced on for a connector that cannot.

`--no-disable-hybrid-kv-cache-manager` with a connector that does not support hybrid allocation is a `ValueError` at boot:
LMCacheConnectorV1, ExampleConnector, FlexKVConnectorV1, HF3FSKVConnector.

Bad:

```sh serve.sh
export PYTHONHASHSEED=0
vllm serve m --no-disable-hybrid-kv-cache-manager --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
export PYTHONHASHSEED=0
vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO804",
    name="hybrid-manager-forced",
    severity="error",
    summary="--no-disable-hybrid-kv-cache-manager with a connector that does not support it",
    remedy="drop the flag: vLLM then turns the hybrid manager off by itself",
    evidence="vLLM config/vllm.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the forced manager."""
    flag = launch.flag("--no-disable-hybrid-kv-cache-manager")
    if flag is None or context.size is not None:
        return
    for use in context.uses:
        if use.entry.get("hma") is False:
            yield RULE.at(flag.location, f"{use.name} does not support the hybrid KV cache manager: ValueError at boot")
            return
