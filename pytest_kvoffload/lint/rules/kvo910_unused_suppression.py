"""An `ignore` comment that ignores nothing.

The finding that it was written for is gone (or its code is misspelt). A stale comment would hide the next mistake.

Bad:

```sh serve.sh
vllm serve m --kv-offloading-size 8  # kvoffload: ignore[KVO601] old
```

Good:

```sh serve.sh
vllm serve m --kv-offloading-size 8
```
"""

from __future__ import annotations

from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO910",
    name="unused-suppression",
    severity="warning",
    summary="An ignore comment that suppresses no finding",
    remedy="delete the comment, or the code that is not needed in it",
    evidence="this linter",
)
# Made by suppress.py, which is the only place that knows what was suppressed.
