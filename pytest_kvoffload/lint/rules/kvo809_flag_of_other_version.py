"""A flag that the running version does not have yet, or no more.

Reported for flags around the KV cache whose history is known: `--device-memory-utilization` came with 0.31,
`--prefix-cache-retention-interval` with 0.29.

Bad:

```sh run.sh
docker run --ipc=host vllm/vllm-openai:v0.28.0 --model m --device-memory-utilization 0.9 --kv-offloading-size 8
```

Good:

```sh run.sh
docker run --ipc=host vllm/vllm-openai:v0.28.0 --model m --gpu-memory-utilization 0.9 --kv-offloading-size 8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

HISTORY = {
    "--device-memory-utilization": ("0.31", "--gpu-memory-utilization"),
    "--prefix-cache-retention-interval": ("0.29", "nothing"),
    "--enable-mamba-shared-prefix-checkpoint": ("0.31", "--enable-mamba-fine-grained-prefix-cache (0.30)"),
}
RULE = Rule(
    code="KVO809",
    name="flag-of-other-version",
    severity="error",
    versions="see the flag",
    summary="A flag that the running vLLM does not have yet",
    remedy="upgrade vLLM, or use the flag that it has",
    evidence="vLLM engine/arg_utils.py 0.26-0.33, compared; measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report flags that are newer than the known version."""
    for flag in launch.flags:
        entry = HISTORY.get(flag.name.replace("_", "-"))
        if entry is not None and context.vllm.before(entry[0]):
            yield RULE.at(
                flag.location,
                f"vLLM {context.vllm.text} has no {flag.name}: it came with {entry[0]}",
                remedy=f"use {entry[1]}",
                versions=f"{entry[0]}+",
            )
