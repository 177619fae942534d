"""A connector name that vLLM does not know.

The argument parser accepts any name; the engine then dies with `Unsupported connector type`. A name that comes with
`kv_connector_module_path` is a vendor's own class and is not judged.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadConnector","kv_role":"kv_both"}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO201",
    name="unknown-connector",
    severity="error",
    summary="The connector's name is not registered in vLLM and has no module path",
    remedy="write a registered name, or give kv_connector_module_path for a class of your own",
    evidence="vLLM distributed/kv_transfer/kv_connector/factory.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report names that are in no registry and have no module path."""
    data = catalog.curated()
    for use in context.uses:
        if use.name is None or use.vendor or use.name in data["retired"] or not use.name:
            continue
        if re.search(rf"register_connector\(\s*['\"]{re.escape(use.name)}['\"]", document.text):
            continue  # registered by this very file
        known = catalog.vllm_connectors(context.vllm.text)
        if use.name in known:
            continue
        where = f"vLLM {context.vllm.text}" if context.vllm.text else "vLLM 0.26 to 0.33"
        if use.name in data["unregistered"]:
            yield RULE.at(
                use.location,
                f"{use.name} is not registered: it needs its module path",
                remedy=f'add "kv_connector_module_path": "{data["unregistered"][use.name]}"',
            )
            continue
        elsewhere = use.name in catalog.vllm_connectors()
        hint = "" if elsewhere else did_you_mean(use.name, known, cutoff=0.75)
        ascend = "ascend" in (known_text(launch.image) or "").lower() or "Ascend" in use.name
        # A fork's own image may register names of its own: not certain enough for an error.
        yield RULE.at(
            use.location,
            f"{where} has no connector {use.name!r}{hint}",
            severity="warning" if ascend or not _plain_vllm(document, launch) else None,
            versions="0.30+" if elsewhere else None,
        )


def _plain_vllm(document: Document, launch: Launch) -> bool:
    """Whether vLLM's own program is started: a vendor's launcher may register connectors of its own."""
    lines = document.text.splitlines()
    if document.reader not in {"shell", "sbatch"} or not 0 < launch.location.line <= len(lines):
        return True
    return re.search(r"(?<![\w-])vllm(?![\w-])|api_server|docker|podman", lines[launch.location.line - 1]) is not None
