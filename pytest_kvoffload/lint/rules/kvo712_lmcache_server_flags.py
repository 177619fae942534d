"""An `lmcache server` without a flag that it requires.

`--l1-size-gb` and `--eviction-policy` are both required; the policy is `LRU`, `ARC`, `IsolatedLRU` or `noop`, case-sensitive.

Bad:

```sh run.sh
lmcache server --l1-size-gb 20
```

Good:

```sh run.sh
lmcache server --l1-size-gb 20 --eviction-policy LRU
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.errors import did_you_mean
from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Launch
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

POLICIES = ("LRU", "ARC", "IsolatedLRU", "noop")
RULE = Rule(
    code="KVO712",
    name="lmcache-server-flags",
    severity="error",
    products=("lmcache-server",),
    versions="LMCache 0.5",
    summary="lmcache server needs --l1-size-gb and --eviction-policy",
    remedy="give --l1-size-gb GIB and --eviction-policy LRU",
    evidence="LMCache v1/distributed/config.py 0.5.6, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report missing flags of a complete command line, and unknown policies."""
    words = document.text.splitlines()
    line = words[launch.location.line - 1] if 0 < launch.location.line <= len(words) else ""
    modern = bool(re.search(r"lmcache[\"',\s]+server\b", line))
    policy = launch.flag("--eviction-policy")
    if policy is not None:
        text = known_text(policy.value)
        if text is not None and text not in POLICIES:
            yield RULE.at(
                policy.location, f"--eviction-policy {text!r} does not exist{did_you_mean(text, POLICIES, cutoff=0.3)}"
            )
    if not context.complete or not modern or launch.flag("--config", "--help", "-h", "--version"):
        return
    given = [f.name.replace("_", "-") for f in launch.flags if f.name.startswith("--")]
    # argparse takes the unambiguous beginning of a flag: --l1-size is --l1-size-gb
    missing = [
        n for n in ("--l1-size-gb", "--eviction-policy") if not any(n.startswith(g) and len(g) > 8 for g in given)
    ]
    if missing and "..." not in line:
        yield RULE.at(
            launch.location,
            f"lmcache server does not start without {' and '.join(missing)}",
            severity="warning" if document.reader == "markdown" else None,  # prose may show one flag only
        )
