"""`--config=FILE`, which is not read.

Only the two-word form `--config FILE` is read. With the equals sign the file is not opened, not even looked for, and the
server starts with nothing of it.

Bad:

```sh serve.sh
vllm serve --config=serve.yaml --port 8000
```

Good:

```sh serve.sh
vllm serve --config serve.yaml --port 8000
```
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kvoffload.lint.facts import Context
from pytest_kvoffload.lint.model import Diagnostic, Document, Edit, Launch, Location
from pytest_kvoffload.lint.numbers import (
    known_text,
)
from pytest_kvoffload.lint.rule import Rule

RULE = Rule(
    code="KVO503",
    name="config-equals",
    severity="error",
    fixable=True,
    summary="--config=FILE is not read, only --config FILE is",
    remedy="write --config FILE with a blank",
    evidence="vLLM utils/argparse_utils.py 0.26-0.33, measured",
)


def check(document: Document, launch: Launch, context: Context) -> Iterator[Diagnostic]:
    """Report the joined form."""
    for flag in launch.flags:
        if flag.name == "--config" and flag.joined and flag.value is not None:
            yield RULE.at(
                flag.location,
                f"--config={known_text(flag.value) or '...'} is not read: vLLM only takes --config FILE in two words",
                fix=_fix(document, flag.location),
            )


def _fix(document: Document, location: Location) -> tuple[Edit, ...]:
    lines = document.text.splitlines()
    if not 1 <= location.line <= len(lines):
        return ()
    line = lines[location.line - 1]
    column = line.find("--config=", max(location.column - 1, 0))
    before = line[column - 1 : column] if column > 0 else " "
    if column < 0 or before not in {" ", "\t"} or document.reader not in {"shell", "dockerfile", "systemd"}:
        return ()  # a list item of YAML or JSON needs two items, which is no mechanical change
    start = Location(path=location.path, line=location.line, column=column + 1 + len("--config"))
    return (Edit(location=start, end_line=location.line, end_column=start.column + 1, replacement=" "),)
