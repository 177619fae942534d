"""What a test run needs once something is about to boot: the run's directory, progress, lint and preflight.

Imported by the fixtures when the first server is asked for, never before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kvoffload.output.progress import one_line, phase_text
from pytest_kvoffload.records import ConnectorConfig, EngineConfig, ModelConfig
from pytest_kvoffload.session import RunSession

if TYPE_CHECKING:
    from pytest_kvoffload.fixtures import PluginState
    from pytest_kvoffload.probe import Progress as PhaseProgress

RUN_DIR_KEY = "kvoffload_run_dir"
OWNER_KEY = "kvoffload_owner_pid"
KEPT_RUNS = 5
PREFIX = "kvoffload: "


def run_dir_of(state: PluginState) -> Path:
    """Return the directory of this run; the workers of a run share the controller's."""
    config = state.pytest_config
    if state.is_worker:
        return Path(config.workerinput[RUN_DIR_KEY])  # type: ignore[attr-defined]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return state.options.artifacts / f"run-{stamp}-{os.getpid()}"


def make_session(state: PluginState) -> RunSession:
    """Make the run's session. In a worker the servers belong to the controller, and end with it."""
    from pytest_kvoffload.boot_checks import before_boot

    config, options = state.pytest_config, state.options
    if not state.is_worker:
        _prepare_artifacts(options.artifacts)
    return RunSession(
        state.run_dir,
        owner_pid=int(config.workerinput[OWNER_KEY]) if state.is_worker else None,  # type: ignore[attr-defined]
        progress=_TerminalProgress(config) if _wants_progress(state) else None,
        before_boot=before_boot(
            insist=options.insist, warn=_warn, lint=options.lint, settings=state.config.lint, record=state.run_dir
        ),
        owns_servers=not state.is_worker,
    )


def skip_unless_it_runs(url: str, connector: ConnectorConfig, engine: EngineConfig, model: ModelConfig) -> None:
    """Skip the test when the attached server is known to run another connector than the test asks for.

    A server without developer mode does not tell what it runs: then the test goes on, and its assertions decide.
    """
    from pytest_kvoffload.engine import attach

    info = attach(dataclasses.replace(engine, kind="attach", url=url), model=model).info
    if not info.resets and info.kv_transfer_config is None:
        return
    runs = (info.kv_transfer_config or {}).get("kv_connector")
    wants_none = connector.kind == "recompute"
    if wants_none != (runs is None):
        pytest.skip(f"the server at {url} runs {runs or 'no connector'}, not {connector.name!r} ({connector.kind})")


def _warn(text: str) -> None:
    import warnings

    warnings.warn(pytest.PytestWarning(text), stacklevel=2)


def _wants_progress(state: PluginState) -> bool:
    return state.options.progress and not state.is_worker


def _prepare_artifacts(directory: Path) -> None:
    """Make the directory invisible to git and drop all but the newest runs."""
    import shutil

    directory.mkdir(parents=True, exist_ok=True)
    ignore = directory / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    for old in sorted(directory.glob("run-*"))[: -(KEPT_RUNS - 1)]:
        shutil.rmtree(old, ignore_errors=True)


class _TerminalProgress:
    """One living line below pytest's own, on a terminal; nothing elsewhere.

    It is written on the next line and the cursor goes back to where pytest left it, so that pytest's line (the file and
    the letters of its tests) stays as it is.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._shown = False

    def line(self, text: str) -> None:
        self._show(one_line(text))

    def phase(self, progress: PhaseProgress) -> None:
        self._show(phase_text(progress, width=self._width))

    def clear(self) -> None:
        if self._shown:
            self._write("")
            self._shown = False

    @property
    def _width(self) -> int:
        return int(self._reporter._tw.fullwidth) - len(PREFIX) - 1 if self._reporter is not None else 80

    def _show(self, text: str) -> None:
        if self._reporter is None or not self._reporter.isatty or os.environ.get("TERM") == "dumb":
            return
        width = self._width
        self._write(PREFIX + (text if len(text) <= width else f"{text[: width - 1]}…"))
        self._shown = True

    def _write(self, text: str) -> None:
        disabled: Callable[[], contextlib.AbstractContextManager[None]] = (
            self._capture.global_and_fixture_disabled if self._capture else contextlib.nullcontext
        )
        with disabled():
            writer = self._reporter._tw
            column = writer.width_of_current_line % writer.fullwidth + 1
            # Down (scrolls at the bottom), erase the line, write; up, and back to pytest's column. Straight into the
            # file: the writer counts what it writes, and would take our text for a part of its line.
            encoding = getattr(writer._file, "encoding", None) or "utf-8"
            text = text.encode(encoding, "replace").decode(encoding)
            writer._file.write(f"\n\r\x1b[2K{text}\x1b[A\x1b[{column}G")
            writer._file.flush()
