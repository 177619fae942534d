"""A size flag that is no plain number.

`--kv-offloading-size` and `--cpu-offload-gb` take a number of GiB. `10GB`, `10G` and the like are refused by the parser.

Bad:

```sh serve.sh
vllm serve m --kv-offloading-size 10GB
```

Good:

```sh serve.sh
vllm serve m --kv-offloading-size 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
    plain_number,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO509",
    name="size-flag-number",
    severity="error",
    summary="--kv-offloading-size takes a plain number of GiB, above zero",
    remedy="write the number of GiB without a unit",
    evidence="vLLM engine/arg_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report units, missing values, zero and negative sizes."""
    for flag in launch.flags:
        name = flag.name.replace("_", "-")
        if name not in {"--kv-offloading-size", "--cpu-offload-gb"}:
            continue
        text = known_text(flag.value)
        if flag.value is None and context.complete and document.reader != "python":
            yield RULE.at(flag.location, f"{flag.name} has no value: vLLM refuses it")
        if text is None:
            continue
        number = plain_number(text)
        if number is None and text.lower() not in {"none", "null"}:
            yield RULE.at(
                flag.value.location if flag.value else flag.location,
                f"{flag.name} {text!r} is no number: vLLM refuses it",
            )
        elif number is not None and name == "--kv-offloading-size" and number <= 0 and context.backend == "native":
            what = "counts as missing" if number == 0 else "is negative"
            yield RULE.at(
                flag.value.location if flag.value else flag.location,
                f"{flag.name} {text} {what}: the engine does not boot",
                remedy="write a size above zero, or leave the flag out",
            )
