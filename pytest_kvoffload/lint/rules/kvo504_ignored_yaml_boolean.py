"""A switched-off boolean in a vLLM configuration file that is not read.

`enable-prefix-caching: false` is ignored by vLLM before 0.28 (prefix caching stays on); with underscores,
`enable_prefix_caching: false`, by every version. `no-enable-prefix-caching: true` works in all.

Bad:

```yaml serve.yaml
model: Qwen/Qwen3-8B
enable_prefix_caching: false
kv-offloading-size: 8
```

Good:

```yaml serve.yaml
model: Qwen/Qwen3-8B
no-enable-prefix-caching: true
kv-offloading-size: 8
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO504",
    name="ignored-yaml-boolean",
    severity="error",
    loose=True,
    products=("vllm", "unknown"),
    versions="with hyphens 0.26-0.27, with underscores all",
    summary="enable-x: false in a vLLM YAML file is ignored before 0.28, and always with underscores",
    remedy="write no-enable-x: true, with hyphens",
    evidence="vLLM utils/argparse_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report booleans of the file that the parser drops."""
    for config in launch.configs:
        if config.kind != "vllm-config-yaml" or config.node.kind != "object":
            continue
        for member in config.node.members:
            node = member.node
            if node.kind != "boolean" or node.value or not re.match(r"enable[-_]", member.key):
                continue
            hyphens = member.key.replace("_", "-")
            if "_" in member.key:
                yield RULE.at(
                    member.location,
                    f"{member.key}: false is ignored: keys of this file need hyphens",
                    remedy=f"write no-{hyphens}: true",
                )
            elif context.vllm.before("0.28") is not False:
                known = context.vllm.before("0.28")
                yield RULE.at(
                    member.location,
                    f"{member.key}: false is ignored before vLLM 0.28",
                    remedy=f"write no-{hyphens}: true",
                    severity=None if known else "warning",
                    versions="0.26-0.27",
                )
