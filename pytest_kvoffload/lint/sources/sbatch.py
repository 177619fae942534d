"""Slurm batch files: a shell script with ``#SBATCH`` options (memory, job name, exported variables)."""

from __future__ import annotations

import re

from pytest_kvoffload.lint.model import Limits, Value
from pytest_kvoffload.lint.sources.argv import Surroundings
from pytest_kvoffload.lint.sources.collect import Collector, quantity
from pytest_kvoffload.lint.sources.shell import read_shell
from pytest_kvoffload.lint.sources.text import Mapped

_OPTION = re.compile(r"(?m)^#SBATCH[ \t]+(--?[A-Za-z][\w-]*)(?:[= \t]+([^\s#]+))?")


def read_sbatch(out: Collector, text: Mapped) -> None:
    """Read the options, then the script."""
    limits = Limits()
    words: list[Value] = []
    for match in _OPTION.finditer(text.text):
        if match.group(2) is None:
            continue
        value = text[match.start(2) : match.end(2)]
        if match.group(1) == "--mem":
            limits = Limits(memory_limit=quantity(out, value, "slurm"))
        elif match.group(1) in ("--job-name", "-J", "--comment"):
            words.append(out.value(value))
    with out.inside(Surroundings(source="sbatch", limits=limits), None):
        read_shell(out, text, "sbatch", tuple(words))
