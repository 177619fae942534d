"""The pytest hooks, and nothing else. All state lives in one object under a stash key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kvoffload.errors import KVOffloadError
from pytest_kvoffload.fixtures import (
    FIXTURE_NAMES,
    PluginState,
    arm_key,
    kvoffload_chaos,
    kvoffload_config,
    kvoffload_connector,
    kvoffload_control,
    kvoffload_engine,
    kvoffload_fault,
    kvoffload_measure,
    kvoffload_measurement,
    kvoffload_model,
    kvoffload_server,
    kvoffload_workload,
    state_key,
)
from pytest_kvoffload.options import MARK_LINE, MARK_NAME, add_options, read_marks, read_options

if TYPE_CHECKING:
    from collections.abc import Generator

    from _pytest.terminal import TerminalReporter

__all__ = [
    "kvoffload_chaos",
    "kvoffload_config",
    "kvoffload_connector",
    "kvoffload_control",
    "kvoffload_engine",
    "kvoffload_fault",
    "kvoffload_measure",
    "kvoffload_measurement",
    "kvoffload_model",
    "kvoffload_server",
    "kvoffload_workload",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options and ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark and read the options, so that a bad one ends the run before anything is collected."""
    config.addinivalue_line("markers", MARK_LINE)
    try:
        options = read_options(config)
    except KVOffloadError as error:
        raise pytest.UsageError(str(error)) from error
    state = config.stash[state_key] = PluginState(config, options)
    if options.gate or options.baseline_update:
        from pytest_kvoffload.gate_hooks import GateHooks

        try:
            state.gate = GateHooks(state)
        except KVOffloadError as error:
            raise pytest.UsageError(str(error)) from error
        config.pluginmanager.register(state.gate, "kvoffload-gate")


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    """Say what would be tested; nothing when there is no configuration and no option of ours."""
    from pytest_kvoffload.config import find_config

    state = config.stash[state_key]
    file = state.options.config_file or find_config(config.rootpath)
    if file is None and not state.options.urls and not state.options.engine:
        return None
    try:
        loaded = state.config
    except KVOffloadError as error:
        raise pytest.UsageError(str(error)) from error
    if state.options.urls:
        engine = "attached to " + ", ".join(state.options.urls.values())
    else:
        version = f" vllm {loaded.engine.vllm_version}" if loaded.engine.vllm_version else ""
        engine = f"engine {loaded.engine.kind}{version}"
    source = Path(loaded.source or "defaults")
    if source.is_relative_to(config.rootpath):
        source = source.relative_to(config.rootpath)
    parts = [f"kvoffload: {engine}", f"connectors {', '.join(loaded.connectors)}", f"config {source}"]
    line = ", ".join(parts)
    return [line] if len(line) < config.get_terminal_writer().fullwidth else [parts[0], *(f"  {p}" for p in parts[1:])]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the marks, and bring tests of the same configuration together so that boots are fewest."""
    state = config.stash[state_key]
    ours = [i for i, item in enumerate(items) if FIXTURE_NAMES.intersection(getattr(item, "fixturenames", ()))]
    try:
        for item in items:
            if item.get_closest_marker(MARK_NAME):
                read_marks(item)
    except KVOffloadError as error:
        raise pytest.UsageError(str(error)) from error
    if len(ours) < 2:
        return
    first_seen: dict[str, int] = {}
    keys = {i: arm_key(items[i], state) for i in ours}
    for i in ours:
        first_seen.setdefault(keys[i], i)
    ordered = [items[i] for i in sorted(ours, key=lambda i: (first_seen[keys[i]], i))]
    for place, item in zip(ours, ordered, strict=True):
        items[place] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let the short summary begin with what failed: the exception's qualified name would fill its line."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and call.excinfo is not None and call.excinfo.typename == "MeterAssertionError":
        crash.message = str(call.excinfo.value)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where the run lies and whose end is the servers' end."""
    import os

    from pytest_kvoffload.fixtures_session import OWNER_KEY, RUN_DIR_KEY

    state = node.config.stash[state_key]
    node.workerinput[RUN_DIR_KEY] = str(state.run_dir)
    node.workerinput[OWNER_KEY] = os.getpid()


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """One row per measured configuration and phase."""
    state = config.stash[state_key]
    if state.is_worker:
        return
    used = state.used
    if used:
        from pytest_kvoffload.output.summary import write_pytest_summary

        measurements, unreadable = state.session.measurements()
        write_pytest_summary(terminalreporter, measurements, run_dir=state.run_dir, unreadable=unreadable)
    if state.options.html is not None:
        from pytest_kvoffload.output.report.write import write_pytest_report

        write_pytest_report(
            terminalreporter,
            run_dir=state.run_dir if used else None,
            target=state.options.html,
            arguments=config.invocation_params.args,
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers of the run; a worker leaves that to the controller."""
    state = config.stash.get(state_key, None)
    if state is not None and state.used:
        state.session.close()
