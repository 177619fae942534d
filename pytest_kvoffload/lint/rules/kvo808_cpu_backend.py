"""A native tier on vLLM's CPU backend.

The native offloading worker needs a GPU: on the CPU backend `OffloadingConnector` stops the boot with "CPU Offloading is
currently only supported on CUDA-alike and XPU GPUs", and `SimpleCPUOffloadConnector` dies on CUDA streams. A spec of
one's own (`spec_module_path`) is not reported.

Bad:

```sh run.sh
docker run --ipc=host vllm/vllm-openai-cpu:v0.32.0 --model m --kv-offloading-size 8
```

Good:

```sh run.sh
docker run --gpus all --ipc=host vllm/vllm-openai:v0.32.0 --model m --kv-offloading-size 8
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO808",
    name="cpu-backend",
    severity="error",
    summary="The native tier does not run on vLLM's CPU backend",
    remedy="use LMCacheMPConnector with an lmcache server, or a spec of your own (spec_module_path)",
    evidence="vLLM v1/kv_offload/cpu/spec.py 0.26:147, 0.32:201, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report native connectors where the CPU backend is certain."""
    image = (known_text(launch.image) or "").split("@")[0]
    name = image.rsplit("/", 1)[-1]
    cpu = bool(re.search(r"vllm[\w-]*-cpu\b|cpu-release", name)) or context.env_set("VLLM_CPU_KVCACHE_SPACE")
    if not cpu:
        return
    if context.size is not None and context.backend == "native" and not any(u.own_spec for u in context.uses):
        yield RULE.at(
            context.size.location, "the native tier does not run on the CPU backend: the engine does not boot"
        )
    elif context.size is None:
        for use in context.uses:
            if use.name in {"OffloadingConnector", "SimpleCPUOffloadConnector"} and not (use.vendor or use.own_spec):
                yield RULE.at(use.location, f"{use.name} does not run on the CPU backend: the engine does not boot")
