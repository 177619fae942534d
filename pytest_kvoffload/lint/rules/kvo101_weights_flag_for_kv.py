"""A flag that moves model weights, where the KV cache was meant.

`--cpu-offload-gb` and the `--offload-*` flags move **weights** out of device memory. They leave the KV cache where
it is, make every step slower, and give no cache tier. The finding is an error when something beside the flag says
that the KV cache is meant: a KV connector, `--kv-offloading-size`, an LMCache variable, a comment, a title or the
file's name. A comment that speaks of weights turns it into a warning.

Bad:

```sh start-kv-offload.sh
# spill the KV cache to host memory
vllm serve Qwen/Qwen3-8B --cpu-offload-gb 32
```

Good:

```sh start-kv-offload.sh
# spill the KV cache to host memory
vllm serve Qwen/Qwen3-8B --kv-offloading-size 32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.catalog import lint as catalog
from pytest_kvoffload.lint import intent
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Flag, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
    plain_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO101",
    name="weights-flag-for-kv",
    severity="error",
    summary="A flag that moves model weights stands where the KV cache is meant",
    remedy="to move the KV cache, write --kv-offloading-size GIB (host memory in GiB, total over the ranks) instead",
    evidence="vLLM config/offload.py, engine/arg_utils.py 0.26-0.33; LMCache issue 1372, vLLM issue 23087",
)


SIZED_BY = {
    "OffloadingConnector": "cpu_bytes_to_use in its kv_connector_extra_config",
    "SimpleCPUOffloadConnector": "cpu_bytes_to_use in its kv_connector_extra_config",
    "LMCacheConnectorV1": "LMCACHE_MAX_LOCAL_CPU_SIZE (GiB per rank)",
    "LMCacheMPConnector": "--l1-size-gb of lmcache server",
}
"""Where a connector takes the size of its host tier from: beside it --kv-offloading-size would overwrite it."""


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report weights flags beside a KV intent."""
    sign = context.kv_intent
    if sign is None:
        return
    on_purpose = intent.speaks_of_weights(launch.words)
    for flag in weights_flags_in_use(launch):
        yield RULE.at(
            flag.location,
            f"{flag.name} moves model weights, not the KV cache, but {sign} says the KV cache is meant",
            severity="warning" if on_purpose else None,
            remedy=_remedy(context),
            confidence="medium" if on_purpose or sign.startswith("the text") else None,
        )


def _remedy(context: Context) -> str | None:
    """Where a connector of the transfer configuration runs already, its own size is what to set."""
    if context.size is not None:
        return "remove it; --kv-offloading-size already sizes the tier"
    for name in sorted(context.running):
        if name in SIZED_BY:
            return f"remove it; {name} takes the size of its tier from {SIZED_BY[name]}"
    return None


def weights_flags_in_use(launch: Launch) -> Iterator[Flag]:
    """Yield the weights flags that are given and not switched off by a zero."""
    names = catalog.weights_flags()
    for flag in launch.flags:
        name = flag.name.split(".", 1)[0].replace("_", "-")
        if name in names and plain_number(known_text(flag.value) or "x") != 0:
            yield flag
