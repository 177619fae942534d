"""The same configuration given twice.

Of several `--kv-transfer-config` (or size) flags only the last counts. Several connectors go into one `MultiConnector`.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}' --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector","kv_role":"kv_both"},{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}]}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Flag, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

NAMES = {
    "--kv-transfer-config",
    "--kv-offloading-size",
    "--kv-offloading-backend",
    "--kv-events-config",
    "--cpu-offload-gb",
}
RULE = Rule(
    code="KVO502",
    name="repeated-flag",
    severity="error",
    summary="A flag given twice: only the last one counts",
    remedy="keep one; several connectors go into a MultiConnector",
    evidence="vLLM utils/argparse_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report every occurrence but the last."""
    groups: dict[str, list[Flag]] = {}
    for flag in launch.flags:
        name = flag.name.replace("_", "-")
        if name in NAMES or name.startswith("--kv-transfer-config."):
            groups.setdefault(name, []).append(flag)
    for name, flags in groups.items():
        last = known_text(flags[-1].value)
        for flag in flags[:-1]:
            if name.endswith("+") or flag.location == flags[-1].location:
                continue
            same = last is not None and known_text(flag.value) == last
            yield RULE.at(
                flag.location,
                f"{flag.name} is given again on line {flags[-1].location.line}: this one is dropped",
                severity="warning" if same else None,
            )
