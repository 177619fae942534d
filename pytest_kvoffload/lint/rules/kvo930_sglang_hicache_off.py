"""HiCache options without HiCache.

SGLang's `--hicache-*` options only count with `--enable-hierarchical-cache`. It needs the radix cache:
`--disable-radix-cache` and the hierarchical cache exclude each other.

Bad:

```sh run.sh
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --hicache-size 100
```

Good:

```sh run.sh
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-hierarchical-cache --hicache-size 100
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO930",
    name="sglang-hicache-off",
    severity="error",
    products=("sglang",),
    versions="SGLang",
    summary="--hicache-* options without --enable-hierarchical-cache, or with the radix cache off",
    remedy="add --enable-hierarchical-cache",
    evidence="SGLang HiCache guide and server arguments",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report options that nothing switches on."""
    enabled = launch.flag("--enable-hierarchical-cache")
    off = launch.flag("--disable-radix-cache")
    if enabled is not None and off is not None:
        yield RULE.at(off.location, "--disable-radix-cache and --enable-hierarchical-cache exclude each other")
    if (
        enabled is not None
        or not context.complete
        or launch.flag("--config", "--enable-lmcache", "--disaggregation-mode")
    ):
        return
    for flag in launch.flags:
        if flag.name.startswith("--hicache-"):
            yield RULE.at(flag.location, f"{flag.name} does nothing without --enable-hierarchical-cache")
            return
