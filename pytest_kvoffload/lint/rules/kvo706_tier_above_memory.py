"""A native tier larger than the container's memory.

The region is filled at boot, in full: a tier above the memory limit is killed at start. The size is for each
data-parallel engine.

Bad:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: engine
      image: vllm/vllm-openai:v0.32.0
      args: ["--model=m", "--kv-offloading-size=200"]
      resources:
        limits: {memory: 128Gi}
```

Good:

```yaml pod.yaml
apiVersion: v1
kind: Pod
metadata: {name: vllm}
spec:
  containers:
    - name: engine
      image: vllm/vllm-openai:v0.32.0
      args: ["--model=m", "--kv-offloading-size=64"]
      resources:
        limits: {memory: 128Gi}
      volumeMounts: [{name: dshm, mountPath: /dev/shm}]
  volumes:
    - name: dshm
      emptyDir: {medium: Memory, sizeLimit: 70Gi}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    GIB,
    known_text,
    plain_number,
    show_bytes,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO706",
    name="tier-above-memory",
    severity="error",
    products=("vllm", "lmcache-server"),
    summary="The native tier exceeds the container's memory limit or request",
    remedy="make the tier smaller or the limit larger",
    evidence="vLLM cpu/shared_offload_region.py 0.26-0.33: the region is populated at boot; vLLM issue 53042",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare each tier times the engines with the limit (error) and the request (warning)."""
    limit, request = launch.limits.memory_limit, launch.limits.memory_request
    engines = context.data_parallel or 1
    for tier in context.native_tiers:
        ranks = context.ranks if tier.per_rank else 1
        if ranks is None:
            continue
        total = tier.bytes * engines * ranks
        many = (
            f" for each of {engines} engines, {show_bytes(total)} together,"
            if engines > 1
            else f" ({show_bytes(total)})"
        )
        if limit is not None and limit.bytes is not None and total >= limit.bytes:
            yield RULE.at(tier.location, f"{tier.written}{many} does not fit the memory limit {limit.raw}")
        elif request is not None and request.bytes is not None and total >= request.bytes and limit is None:
            yield RULE.at(
                tier.location, f"{tier.written}{many} is above the memory request {request.raw}", severity="warning"
            )
    flag = launch.flag("--l1-size-gb")
    number = plain_number(known_text(flag.value) or "") if flag is not None else None
    if flag is None or number is None or limit is None or limit.bytes is None:
        return
    if number * GIB >= limit.bytes:
        yield RULE.at(
            flag.location, f"--l1-size-gb {show_number(number)} (GiB) does not fit the memory limit {limit.raw}"
        )
