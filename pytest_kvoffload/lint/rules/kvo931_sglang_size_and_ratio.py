"""HiCache size and ratio together.

`--hicache-size` (GB for each rank) overrides `--hicache-ratio` (times the device pool): only one of them counts.

Bad:

```sh run.sh
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-hierarchical-cache --hicache-ratio 2 --hicache-size 100
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
from pytest_kvoffload.lint.numbers import (
    known_text,
    plain_number,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO931",
    name="sglang-size-and-ratio",
    severity="warning",
    products=("sglang",),
    versions="SGLang",
    summary="--hicache-size overrides --hicache-ratio",
    remedy="keep one of the two",
    evidence="SGLang HiCache best practices: size overrides the ratio",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the ratio that a size above zero overrides."""
    ratio, size = launch.flag("--hicache-ratio"), launch.flag("--hicache-size")
    number = plain_number(known_text(size.value) or "") if size is not None else None
    if ratio is not None and size is not None and number is not None and number > 0:
        yield RULE.at(ratio.location, f"--hicache-ratio is overridden by --hicache-size {show_number(number)}")
    text = known_text(size.value) if size is not None else None
    if size is not None and text is not None and number is None:
        yield RULE.at(
            size.location, f"--hicache-size {text!r} is no number", severity="error", remedy="write GB without a unit"
        )
