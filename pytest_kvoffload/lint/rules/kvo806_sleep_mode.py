"""Sleep mode beside a connector that does not support it.

vLLM 0.33 checks whether the connector supports `--enable-sleep-mode` and refuses the others.

Bad:

```sh run.sh
docker run --ipc=host -e PYTHONHASHSEED=0 vllm/vllm-openai:v0.33.0 --model m --enable-sleep-mode --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```

Good:

```sh run.sh
docker run --ipc=host -e PYTHONHASHSEED=0 vllm/vllm-openai:v0.33.0 --model m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO806",
    name="sleep-mode",
    severity="warning",
    confidence="medium",
    versions="0.33+",
    summary="--enable-sleep-mode is refused with most connectors from 0.33 on",
    remedy="drop --enable-sleep-mode, or the connector",
    evidence="vLLM config/vllm.py 0.33:1246-1265",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the pair where the version is known to check it."""
    flag = launch.flag("--enable-sleep-mode")
    if flag is None or not context.vllm.at_least("0.33") or not context.running:
        return
    yield RULE.at(
        flag.location,
        f"vLLM 0.33 refuses sleep mode with connectors that do not support it: {', '.join(sorted(context.running))}",
    )
