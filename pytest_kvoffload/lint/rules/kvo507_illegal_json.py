"""A configuration that is no legal JSON.

Single quotes around keys, a trailing comma, `True` instead of `true`, or quotes that the shell took away: vLLM answers
`json_invalid` and does not start. Bare sizes such as `8G` are legal for vLLM.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config "{'kv_connector':'OffloadingConnector','kv_role':'kv_both'}"
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO507",
    name="illegal-json",
    severity="error",
    summary="--kv-transfer-config is no legal JSON: vLLM does not start",
    remedy="write JSON with double quotes, and put the whole of it into single quotes for the shell",
    evidence="vLLM engine/arg_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report configurations that could be read but are not JSON."""
    for config in launch.configs:
        if config.kind not in {"kv-transfer-config", "kv-events-config"} or not config.error:
            continue
        text = (config.text or "").strip()
        if not text or re.search(r"\$[({A-Za-z_]|\{\{|<[A-Za-z_ -]+>|\.\.\.|%[({]|@[A-Z_]+@", text):
            continue  # a template or a placeholder, not what vLLM will see
        if "'" in text and '"' not in text:
            why = "single quotes are not JSON"
        elif re.match(r"\{\s*[A-Za-z_]\w*\s*:", text):
            why = "the shell took the double quotes away" if document.reader == "shell" else "keys need double quotes"
        elif re.search(r"\b(?:True|False|None)\b", text):
            why = "True, False and None are not JSON: write true, false, null"
        else:
            why = config.error
        yield RULE.at(config.location, f"--{config.kind} is no legal JSON: {why}")
