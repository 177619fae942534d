"""The linter: :func:`lint_text` for a file's text, :func:`lint_config` for a boot that is about to happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pytest_kvoffload.lint.model import Diagnostic, Launch
    from pytest_kvoffload.records import ConnectorConfig, EngineConfig

__all__ = ["lint_config", "lint_launch", "lint_text"]


def lint_text(path: str, text: str, **options: Any) -> list[Diagnostic]:
    """Lint the text of one file.

    Args:
        path: The path as it is to be shown; its last part helps to choose the reader.
        text: The decoded text.
        options: Fields of :class:`pytest_kvoffload.lint.run.Options`.

    Returns:
        The findings at or above ``severity`` (default ``warning``), in the order of the file.
    """
    from pytest_kvoffload.lint.run import Options, lint_document
    from pytest_kvoffload.lint.sources import read

    chosen = Options(**options)
    document = read(path, text, markdown=chosen.markdown, helm=chosen.helm)
    return list(lint_document(document, chosen).diagnostics)


def lint_launch(launch: Launch, **options: Any) -> list[Diagnostic]:
    """Lint one launch record that no file holds."""
    from pytest_kvoffload.lint.model import Document
    from pytest_kvoffload.lint.run import Options, lint_document

    document = Document(path=launch.location.path, reader="record", launches=(launch,))
    return list(lint_document(document, Options(**options)).diagnostics)


def lint_config(
    connector: ConnectorConfig,
    engine: EngineConfig,
    argv: Sequence[str],
    env: Mapping[str, str],
    vllm_version: str | None = None,
) -> list[Diagnostic]:
    """Lint the configuration that a test is about to boot.

    Args:
        connector: The arm under test; its name stands in the findings' path.
        engine: Where vLLM comes from.
        argv: The server's arguments, ``--flag`` and value, without the program.
        env: The variables that are set for the server (not the whole environment).
        vllm_version: Version of that vLLM when it is known.

    Returns:
        Findings of warning level and above; ``location.line`` counts the words of ``argv`` from 1.
    """
    from pytest_kvoffload.lint.configuration import launch_of

    launch = launch_of(connector, engine, argv, env)
    return lint_launch(launch, vllm_version=vllm_version or engine.vllm_version)
