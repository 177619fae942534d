"""A pinned pool that 0.26 rounds up.

vLLM 0.26 pins the native tier with PyTorch's allocator, which rounds each rank's share up to a power of two: up to
1.9 times the size asked for. From 0.27 on the tier lives in `/dev/shm` and is exact.

Bad:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: engine
      image: vllm/vllm-openai:v0.26.0
      args: ["--model=m", "--kv-offloading-size=400"]
      resources:
        limits: {memory: 500Gi}
```

Good:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: engine
      image: vllm/vllm-openai:v0.26.0
      args: ["--model=m", "--kv-offloading-size=256"]
      resources:
        limits: {memory: 500Gi}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    show_bytes,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO709",
    name="power-of-two",
    severity="warning",
    versions="0.26",
    summary="vLLM 0.26 rounds the pinned tier up to a power of two",
    remedy="choose a size that is a power of two for each rank, or upgrade to 0.27",
    evidence="vLLM v1/kv_offload/cpu 0.26; vLLM issue 53042",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report tiers of 0.26 whose rounded size exceeds the limit, and note other uneven ones."""
    ranks = context.ranks
    if context.vllm.before("0.26") is not False or context.vllm.before("0.27") is not True or ranks is None:
        return
    if "OffloadingConnector" not in context.running or any(u.tiering for u in context.uses):
        return
    limit = launch.limits.memory_limit
    for tier in context.native_tiers:
        share = tier.bytes // ranks
        if share < 2**20:
            continue
        rounded = (1 << (share - 1).bit_length()) * ranks
        if rounded <= tier.bytes * 1.01:
            continue
        over = limit is not None and limit.bytes is not None and tier.bytes < limit.bytes <= rounded
        yield RULE.at(
            tier.location,
            f"{tier.written}: vLLM 0.26 pins up to {show_bytes(rounded)} for it"
            + (f", above the memory limit {limit.raw}" if over and limit else ""),
            severity="error" if over else "note",
        )
