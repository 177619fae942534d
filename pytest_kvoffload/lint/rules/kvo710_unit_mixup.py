"""A size in the wrong unit.

`--kv-offloading-size`, `LMCACHE_MAX_LOCAL_CPU_SIZE` and `--l1-size-gb` are GiB. A number of bytes or MiB there asks for
more memory than any host has.

Bad:

```sh serve.sh
vllm serve m --kv-offloading-size 34359738368
```

Good:

```sh serve.sh
vllm serve m --kv-offloading-size 32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch, Location
from pytest_kvoffload.lint.numbers import (
    GIB,
    known_text,
    plain_number,
    show_bytes,
    show_number,
)
from pytest_kvoffload.lint.rule import Rule

HUGE = 64 * 1024
RULE = Rule(
    code="KVO710",
    name="unit-mixup",
    severity="error",
    loose=True,
    products=("vllm", "sglang", "lmcache-server", "unknown"),
    summary="A size in bytes or MiB where GiB are read",
    remedy="write GiB",
    evidence="vLLM config/cache.py 0.26-0.33; LMCache local_cpu_backend.py 0.5.6",
)
KEYS = ("max_local_cpu_size", "max_local_disk_size")


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report sizes that no machine has."""
    found: list[tuple[Location, str, float]] = []
    for name in ("--kv-offloading-size", "--l1-size-gb", "--hicache-size"):
        flag = launch.flag(name)
        number = plain_number(known_text(flag.value) or "") if flag is not None else None
        if flag is not None and number is not None:
            found.append((flag.value.location if flag.value else flag.location, name, number))
    for key in KEYS:
        setting = context.lmcache_settings.get(key)
        if setting is not None and setting.number is not None:
            found.append((setting.location, setting.name, setting.number))
    for location, name, number in found:
        disk = "disk" in name.lower()
        if number > (HUGE * 64 if disk else HUGE):
            meant = f": {number / GIB:.4g} GiB in bytes?" if number >= GIB else f": {number / 1024:.4g} GiB in MiB?"
            unit = number / GIB if number >= GIB else number / 1024
            yield RULE.at(location, f"{name} {show_number(number)} is read as GiB{meant}", remedy=f"write {unit:.4g}")
        elif number >= 8192 and not disk:
            yield RULE.at(
                location,
                f"{name} {show_number(number)} is read as GiB, {number / 1024:.4g} TiB: is it meant in MiB?",
                severity="warning",
                confidence="medium",
            )
    for tier in context.native_tiers:
        if tier.bytes > HUGE * GIB and "cpu_bytes" in tier.written:
            yield RULE.at(tier.location, f"{tier.written} is {show_bytes(tier.bytes)}: more than any host has")
