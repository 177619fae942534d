"""One reader a format; :func:`read` chooses by file name and content and never raises."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from pytest_kvoffload.lint.model import Document, Location, Unresolved
from pytest_kvoffload.lint.sources.collect import Collector
from pytest_kvoffload.lint.sources.dockerfile import read_dockerfile
from pytest_kvoffload.lint.sources.dotenv import read_dotenv
from pytest_kvoffload.lint.sources.formats import interesting, sniff, trigger
from pytest_kvoffload.lint.sources.jsonfile import read_json
from pytest_kvoffload.lint.sources.markdown import read_markdown
from pytest_kvoffload.lint.sources.notebook import read_notebook
from pytest_kvoffload.lint.sources.own import read_toml_file
from pytest_kvoffload.lint.sources.python import read_python
from pytest_kvoffload.lint.sources.requirements import read_requirements
from pytest_kvoffload.lint.sources.sbatch import read_sbatch
from pytest_kvoffload.lint.sources.shell import read_shell
from pytest_kvoffload.lint.sources.systemd import read_systemd
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, Source, TooMuch, whole
from pytest_kvoffload.lint.sources.yamlfile import read_yaml_text

__all__ = ["MAX_CHARACTERS", "READERS", "Reader", "interesting", "read"]

INTERNAL = "the file could not be read, which is a fault of kvoffload"
"""Begins the note about an unforeseen fault; tests look for it."""

Reader = Callable[[Collector, Mapped], None]
"""Reads a text (a whole file, or one inside another) into the collector."""

MAX_CHARACTERS = 4_000_000
"""A longer file is no configuration that someone wrote; it is named as unresolved and not read."""


def _shell(out: Collector, text: Mapped) -> None:
    read_shell(out, text)


READERS: MappingProxyType[str, Reader] = MappingProxyType(
    {
        "shell": _shell,
        "sbatch": read_sbatch,
        "systemd": read_systemd,
        "dockerfile": read_dockerfile,
        "yaml": read_yaml_text,
        "workflow": read_yaml_text,
        "lmcache-yaml": read_yaml_text,
        "json": read_json,
        "toml": read_toml_file,
        "dotenv": read_dotenv,
        "requirements": read_requirements,
        "python": read_python,
        "notebook": read_notebook,
        "markdown": read_markdown,
    }
)
"""Reader by the name that :func:`pytest_kvoffload.lint.sources.formats.sniff` gives."""


def read(path: str, text: str, *, markdown: bool = False, helm: bool = False) -> Document:
    """Read one file.

    Args:
        path: The path as it is to be shown; its last part helps to choose the reader.
        text: The decoded text (undecodable bytes replaced).
        markdown: Read the code blocks of Markdown files.
        helm: Render charts with ``helm template`` when it is on PATH.

    Returns:
        What was found. Bad input gives a document with an :class:`Unresolved`, never an exception.
    """
    clean = text.replace("\r\n", "\n").replace("\r", "\n").replace(HOLE, "\ufffd").removeprefix("\ufeff")
    name = sniff(path, clean[:200_000])
    reader = READERS.get(name)
    if reader is None or (name == "markdown" and not markdown):
        return Document(path=path, reader=name, text=text)
    if len(clean) > MAX_CHARACTERS:
        note = Unresolved(location=Location(path=path, line=1), reason="the file is too large to be a configuration")
        return Document(path=path, reader=name, unresolved=(note,), text="")
    out = Collector(Source.of(path, clean), name, helm=helm, markdown=markdown)
    if trigger(clean) or trigger(path):
        try:
            reader(out, whole(clean))
        except TooMuch:
            out.add_unresolved(0, "the file asks for more work than a configuration does; it was read in part")
        except RecursionError:
            out.add_unresolved(0, "the file is nested too deeply; it was read in part")
        except MemoryError:
            out.add_unresolved(0, "the file needs too much memory; it was read in part")
        except Exception as failure:  # a fault of a reader must not hide the findings in other files
            out.add_unresolved(0, f"{INTERNAL}: {type(failure).__name__}: {failure}")
    return out.document()
