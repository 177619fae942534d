"""Generated tokens that the native tier does not keep.

`offload_prompt_only` is true by default: answers are never stored, so a multi-turn conversation misses from its first
answer on. Only with `--pedantic`.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592,"offload_prompt_only":false}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO610",
    name="generated-tokens-not-stored",
    severity="note",
    pedantic=True,
    summary="offload_prompt_only is true by default: answers are never stored",
    remedy='for conversations of several turns add "offload_prompt_only": false',
    evidence="vLLM v1/kv_offload/base.py 0.26-0.33",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Note native tiers that do not say whether answers are kept."""
    for use in context.uses:
        if use.name == "OffloadingConnector" and not use.vendor and use.option("offload_prompt_only") is None:
            yield RULE.at(use.location, "answers are not stored: offload_prompt_only is true by default")
