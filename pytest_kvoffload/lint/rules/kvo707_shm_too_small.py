"""A host tier larger than /dev/shm.

The native tier lives in `/dev/shm` (CUDA from 0.27 on, tiering in every version). Docker gives a container 64 MiB
unless `--shm-size` or `--ipc=host` says otherwise; an `emptyDir` of medium `Memory` is as large as its `sizeLimit`.

Bad:

```sh run.sh
docker run --gpus all --shm-size=1g vllm/vllm-openai:v0.32.0 --model m --kv-offloading-size 32
```

Good:

```sh run.sh
docker run --gpus all --ipc=host vllm/vllm-openai:v0.32.0 --model m --kv-offloading-size 32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
    show_bytes,
)
from pytest_kvoffload.lint.rule import Rule

DOCKER_DEFAULT = 64 * 2**20
RULE = Rule(
    code="KVO707",
    name="shm-too-small",
    severity="error",
    versions="0.27+ (tiering: all)",
    summary="The host tier lives in /dev/shm and does not fit there",
    remedy="give --shm-size or an emptyDir of medium Memory above the tier, or --ipc=host",
    evidence="vLLM cpu/shared_offload_region.py, cpu/spec.py 0.26-0.33; kserve issues 5949 and 6086",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Compare the tiers with what /dev/shm holds: known sizes are errors, defaults depend on the runtime."""
    limits = launch.limits
    if limits.ipc_host or not context.native_tiers:
        return
    tiering = any(u.tiering for u in context.uses)
    image = (known_text(launch.image) or "").lower()
    rocm = "rocm" in image
    simple = context.running == frozenset({"SimpleCPUOffloadConnector"})
    if simple or any(u.own_spec for u in context.uses) or "cpu" in image.rsplit("/", 1)[-1]:
        return
    if not tiering and (context.vllm.before("0.27") or (rocm and context.vllm.at_least("0.31") is not False)):
        return
    engines = context.data_parallel or 1
    for tier in context.native_tiers:
        total = tier.bytes * engines
        if total < 2**20:
            continue
        if limits.shm is not None:
            if limits.shm.bytes is not None and total > limits.shm.bytes:
                yield RULE.at(
                    tier.location,
                    f"{tier.written} ({show_bytes(total)}) lives in /dev/shm, which is limited to {limits.shm.raw}",
                )
            elif limits.shm.bytes is None:
                continue
        elif limits.container and total > DOCKER_DEFAULT:
            kind = limits.container_kind
            docker = any(word in kind for word in ("docker", "podman", "compose")) or not kind
            yield RULE.at(
                tier.location,
                f"{tier.written} ({show_bytes(total)}) lives in /dev/shm, and a container gets 64 MiB there by default",
                severity=None if docker and (tiering or context.vllm.exact) else "warning" if docker else "note",
                confidence="medium",
            )
