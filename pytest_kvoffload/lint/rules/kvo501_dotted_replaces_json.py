"""A dotted key beside the JSON it was meant to extend.

`--kv-transfer-config.a.b VALUE` does not add to `--kv-transfer-config JSON`: it replaces it whole. The connector and the
role of the JSON are gone.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}' --kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use 8G
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config.kv_connector OffloadingConnector --kv-transfer-config.kv_role kv_both --kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use 8G
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO501",
    name="dotted-replaces-json",
    severity="error",
    summary="A dotted --kv-transfer-config key replaces the JSON instead of extending it",
    remedy="put everything into the JSON, or write every key dotted",
    evidence="vLLM utils/argparse_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the first dotted key beside a JSON configuration (or a YAML block)."""
    block = any(c.kind == "vllm-config-yaml" and c.node.get("kv-transfer-config") for c in launch.configs)
    if context.dotted_flags and (context.transfer_flags or block):
        flag = context.dotted_flags[0]
        yield RULE.at(flag.location, f"{flag.name} replaces the whole --kv-transfer-config: no connector is left")
