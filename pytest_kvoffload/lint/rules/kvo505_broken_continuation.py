r"""A command that ends earlier than it looks.

A missing backslash, a blank after a backslash, or a comment inside a continued command cuts the command off: the flags
on the following lines are not part of it.

Bad:

```sh serve.sh
vllm serve m --enable-prefix-caching
  --kv-offloading-size 8
```

Good:

```sh serve.sh
vllm serve m --enable-prefix-caching \
  --kv-offloading-size 8
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_kvoffload.lint.model import Diagnostic, Document
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO505",
    name="broken-continuation",
    severity="error",
    summary="A missing backslash or a blank after one: the flags that follow are not part of the command",
    remedy="end every line but the last with a backslash and nothing after it",
    evidence="POSIX shell, 2.2.1 Escape Character",
)


def check_document(document: Document) -> Iterator[Diagnostic]:
    """Report the problems that the readers found in the text itself, where a launch stands just above."""
    starts = [launch.location.line for launch in document.launches]
    lines = document.text.splitlines()
    for location, text in document.problems:
        if "duplicate" in text.lower() or not 0 < location.line <= len(lines):
            continue  # those are another rule's
        at_end = text.startswith("blanks")
        begins_line = not lines[location.line - 1][: location.column - 1].strip()
        if not at_end and not (begins_line and re.search(r"(?<!-)--\w", text)):
            continue
        # Other broken commands of a script are not this linter's business.
        if any(_belongs(lines, start, location.line, at_end) for start in starts):
            yield RULE.at(location, text)


def _belongs(lines: list[str], start: int, line: int, at_end: bool) -> bool:
    if not 0 <= line - start - (not at_end) < 60:
        return False
    return not any(text.lstrip().startswith("```") for text in lines[start - 1 : line - 1])
