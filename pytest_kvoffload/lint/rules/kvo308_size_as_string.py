"""A size in quotes that is no plain integer.

`"8G"` in quotes stays a string, and `int("8G")` ends the boot; so does `"1e9"`, and `1e9` in YAML. Bare `8G` works: vLLM
expands it, `K M G T` binary and `k m g t` decimal. A quoted string of digits works too.

Bad:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":"8G"}}'
```

Good:

```sh serve.sh
vllm serve m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":8589934592}}'
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    human_number,
    plain_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO308",
    name="size-as-string",
    severity="error",
    summary='A quoted size such as "8G" or "1e9" ends the boot',
    remedy="write the number of bytes without quotes (8 GiB is 8589934592)",
    evidence="vLLM v1/kv_offload/cpu/spec.py, argparse_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report strings that ``int`` cannot read where a number of bytes or a count is due."""
    for use in context.uses:
        if use.vendor or use.own_spec:
            continue
        keys = use.entry.get("extra", {})
        for member in use.extra.members if use.extra is not None else ():
            kind = keys.get(member.key, {}).get("type")
            if kind not in {"bytes", "int"} or member.node.kind != "string":
                continue
            if context.size is not None and member.key == "cpu_bytes_to_use":
                continue
            text = str(member.node.value)
            if isinstance(plain_number(text), int):
                continue
            number = human_number(text)
            exact = f" ({int(number)})" if number is not None and kind == "bytes" else ""
            yield RULE.at(
                member.node.location,
                f"{member.key} is the string {text!r}: int() refuses it and the engine does not boot",
                remedy=f"write a number without quotes{exact}",
            )
