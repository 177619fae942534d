"""A connector that `--kv-offloading-size` replaces.

`--kv-offloading-size` sets `kv_connector`, `kv_role` and `cpu_bytes_to_use` itself and overwrites what
`--kv-transfer-config` says, without a message. NIXL, LMCache or a MultiConnector given beside it are not used.

Bad:

```sh serve.sh
vllm serve m --kv-offloading-size 32 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"},{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":34359738368}}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    GIB,
    known_text,
    node_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO602",
    name="size-overwrites-connector",
    severity="error",
    summary="--kv-offloading-size overwrites the connector of --kv-transfer-config in silence",
    remedy="drop --kv-offloading-size, or put both connectors into a MultiConnector",
    evidence="vLLM config/vllm.py _post_init_kv_transfer_config 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report a named connector, or a size, that the flag replaces."""
    if context.size is None or not context.uses:
        return
    top = context.uses[0]
    if top.name is None:
        return
    (running,) = context.running or ("",)
    if not running:
        return
    if top.name != running or top.vendor:
        yield RULE.at(
            context.size.location,
            f"{context.size.name} overwrites kv_connector in silence: {top.name} is not used, {running} is",
        )
        return
    member = top.member("cpu_bytes_to_use")
    if member is not None and running != "LMCacheMPConnector":
        number, size = node_number(member.node), context.size_gib
        same = number is not None and size is not None and int(number) == int(size * GIB)
        if not same:
            yield RULE.at(
                member.location,
                f"cpu_bytes_to_use is overwritten by {context.size.name} {known_text(context.size.value) or ''}".rstrip(),
                severity="warning",
                remedy="give the size in one place",
            )
