"""``.env`` files: ``NAME=value`` lines, handed to containers and compose services."""

from __future__ import annotations

import re

from pytest_kvoffload.lint.sources.collect import Collector, Word
from pytest_kvoffload.lint.sources.shell_state import env_var
from pytest_kvoffload.lint.sources.text import HOLE, Mapped

_LINE = re.compile(r"(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=[ \t]*(.*?)[ \t]*$")


def read_dotenv(out: Collector, text: Mapped) -> None:
    """Keep every variable as loose: no launch is here."""
    for match in _LINE.finditer(text.text):
        out.spend()
        start, stop = match.span(2)
        value = text[start:stop]
        quoted = len(value) > 1 and value.text[0] in "'\"" and value.text[-1] == value.text[0]
        if quoted:
            value = value[1:-1]
        else:
            comment = re.search(r"[ \t]#", value.text)
            value = value[: comment.start()].strip() if comment else value
        if re.search(r"\$\{?\w", value.text) and not match.group(2).startswith("'"):
            value = Mapped(HOLE, (value.at,), value.at)
        at = text.offset(match.start(1))
        word = Word(value, text.offset(start), text.offset(stop), quoted=quoted)
        out.loose_env.append(env_var(out, match.group(1), at, word, ".env"))
