"""Text in one language inside a shell script: scripts, YAML and Python that a here-document writes or pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_kvoffload.lint.sources.formats import sniff, trigger
from pytest_kvoffload.lint.sources.shell_state import State
from pytest_kvoffload.lint.sources.text import Mapped

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.shell import Script


def read_nested(script: Script, text: Mapped, name: str, kind: str, state: State) -> None:
    """Read ``text`` with the reader that its target's name, its consumer, or its own look asks for."""
    if script.depth >= 5 or not trigger(text.text):
        return
    chosen = kind or sniff(name, text.text)
    if kind == "yaml":
        chosen = sniff("x.yaml", text.text)
    out = script.out
    if chosen in ("shell", "sbatch"):
        inner = state.copy()
        inner.positional = None
        inner.variables = {k: v for k, v in inner.variables.items() if v.exported}
        script.run_text(text, inner)
        return
    from pytest_kvoffload.lint.sources import READERS

    reader = READERS.get(chosen)
    if reader is None or chosen in ("lmcache-yaml", "vllm-config-yaml", "markdown", "json"):
        return
    out.embedded.append("shell")
    try:
        reader(out, text)
    finally:
        out.embedded.pop()
