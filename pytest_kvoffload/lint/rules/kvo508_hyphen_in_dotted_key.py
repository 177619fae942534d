"""A dotted key with hyphens.

After the first dot the keys are those of the JSON, with underscores: `--kv-transfer-config.kv_connector`. With hyphens vLLM
refuses them.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config.kv-connector OffloadingConnector --kv-transfer-config.kv-role kv_both
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
    code="KVO508",
    name="hyphen-in-dotted-key",
    severity="error",
    fixable=True,
    summary="Dotted --kv-transfer-config keys need underscores",
    remedy="write underscores after the first dot",
    evidence="vLLM utils/argparse_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report dotted keys whose part after the dot has hyphens."""
    from pytest_kvoffload.lint.rules.kvo202_retired_connector import replace_text

    for flag in context.dotted_flags:
        head, _, tail = flag.name.partition(".")
        known = tail.split(".")[0]
        if "-" not in known:
            continue
        good = f"{head}.{tail.replace('-', '_')}"
        yield RULE.at(
            flag.location,
            f"{flag.name} is refused: the keys after the dot have underscores",
            remedy=f"write {good}",
            fix=replace_text(document, flag.location, flag.name, good),
        )
