"""A HiCache size that exceeds the memory of all ranks.

`--hicache-size` is for each rank. Times `--tp-size` it must fit the container's memory.

Bad:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: sglang}
spec:
  containers:
    - name: engine
      image: lmsysorg/sglang:latest
      command: ["python", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "4", "--enable-hierarchical-cache", "--hicache-size", "200"]
      resources:
        limits: {memory: 600Gi}
```

Good:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: sglang}
spec:
  containers:
    - name: engine
      image: lmsysorg/sglang:latest
      command: ["python", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "4", "--enable-hierarchical-cache", "--hicache-size", "100"]
      resources:
        limits: {memory: 600Gi}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    GB,
    known_text,
    plain_number,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO932",
    name="sglang-per-rank",
    severity="error",
    products=("sglang",),
    versions="SGLang",
    confidence="medium",
    summary="--hicache-size times the ranks exceeds the memory limit",
    remedy="divide the size by the number of ranks",
    evidence="SGLang HiCache guide: the size is for each rank, in GB",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare the product with the container's limit."""
    flag, ranks, limit = launch.flag("--hicache-size"), context.ranks, launch.limits.memory_limit
    number = plain_number(known_text(flag.value) or "") if flag is not None else None
    if flag is None or number is None or ranks is None or limit is None or limit.bytes is None:
        return
    total = number * ranks * GB
    if total >= limit.bytes:
        yield RULE.at(
            flag.location,
            f"--hicache-size is for each rank: {show_number(number)} GB x {ranks}, and the memory limit is {limit.raw}",
        )
