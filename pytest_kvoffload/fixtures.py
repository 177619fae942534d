"""The chain of fixtures: configuration -> arm -> server -> workload -> measurement. Each link can be overridden.

========================= ======== ==================== =====================================================
Fixture                   Scope    Type                 Default
========================= ======== ==================== =====================================================
kvoffload_config          session  KVOffloadConfig      the file found upwards, command-line options applied
kvoffload_engine          function EngineConfig         [engine], overridden by the mark's ``engine=``
kvoffload_model           function ModelConfig          [model], overridden by the mark's ``model=``
kvoffload_connector       function ConnectorConfig      the mark's connector, else the only one that offloads
kvoffload_workload        function WorkloadConfig       [workload], overridden by the mark's ``workload=``
kvoffload_server          function RunningServer        a booted (or attached) server, shared by the run
kvoffload_measure         function Callable             ``measure("native", sessions=24) -> Measurement``
kvoffload_measurement     function Measurement          this test's connector under this test's workload
kvoffload_control         function Measurement          the control arm under the same workload
kvoffload_fault           function Callable             ``kvoffload_fault("disk_full") -> FaultResult``
========================= ======== ==================== =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kvoffload.errors import ConfigError, KVOffloadError, did_you_mean
from pytest_kvoffload.options import PluginOptions, read_marks

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_kvoffload.engine import RunningServer
    from pytest_kvoffload.faults import Chaos
    from pytest_kvoffload.gate_hooks import GateHooks
    from pytest_kvoffload.records import (
        ConnectorConfig,
        EngineConfig,
        FaultResult,
        KVOffloadConfig,
        Measurement,
        ModelConfig,
        WorkloadConfig,
    )
    from pytest_kvoffload.session import Arm, RunSession

__all__ = [
    "FIXTURE_NAMES",
    "PluginState",
    "arm_key",
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
    "state_key",
]

FIXTURE_NAMES = frozenset(
    {"kvoffload_server", "kvoffload_measure", "kvoffload_measurement", "kvoffload_control", "kvoffload_fault"}
)
"""Fixtures whose use may boot a server."""


class PluginState:
    """All state of the plugin in one process. ``config`` and ``session`` are made when first asked for."""

    def __init__(self, config: pytest.Config, options: PluginOptions) -> None:
        self.pytest_config = config
        self.options = options
        self.gate: GateHooks | None = None
        self._config: KVOffloadConfig | None = None
        self._session: RunSession | None = None
        self._run_dir: Path | None = None

    @property
    def is_worker(self) -> bool:
        """Whether this process is a worker of pytest-xdist."""
        return hasattr(self.pytest_config, "workerinput")

    @property
    def config(self) -> KVOffloadConfig:
        """The configuration, command-line options applied."""
        if self._config is None:
            self._config = _load(self.pytest_config, self.options)
        return self._config

    @property
    def run_dir(self) -> Path:
        """Directory of this run; the workers of a run share the controller's."""
        if self._run_dir is None:
            from pytest_kvoffload.fixtures_session import run_dir_of

            self._run_dir = run_dir_of(self)
        return self._run_dir

    @property
    def session(self) -> RunSession:
        """The run's servers and measurements."""
        if self._session is None:
            from pytest_kvoffload.fixtures_session import make_session

            self._session = make_session(self)
        return self._session

    @property
    def used(self) -> bool:
        """Whether any process of this run has booted or measured anything."""
        return self._session is not None or (self._run_dir is not None and self._run_dir.exists())


state_key: pytest.StashKey[PluginState] = pytest.StashKey()


def _load(config: pytest.Config, options: PluginOptions) -> KVOffloadConfig:
    import dataclasses

    from pytest_kvoffload.config import find_config, load_config

    loaded = load_config(options.config_file or find_config(config.rootpath))
    engine, model = loaded.engine, loaded.model
    if options.engine:
        engine = dataclasses.replace(engine, kind=options.engine, url=None, metrics_urls=())  # type: ignore[arg-type]
    if options.python:
        engine = dataclasses.replace(engine, python=options.python)
    if options.vllm_version:
        engine = dataclasses.replace(engine, vllm_version=options.vllm_version)
    if options.model:
        model = dataclasses.replace(model, path=options.model)
    return dataclasses.replace(loaded, engine=engine, model=model)


def choose_connector(config: KVOffloadConfig, name: str | None, *, section: str) -> ConnectorConfig:
    """Return the named connector; without a name, the only one that offloads.

    Raises:
        ConfigError: no such connector, or no way to choose.
    """
    known = config.connectors
    if name is not None:
        if name not in known:
            raise ConfigError(
                section=section,
                key="connector",
                got=repr(name),
                expected="one of [connectors]: " + ", ".join(known),
                source=config.source,
                hint=did_you_mean(name, known),
            )
        return known[name]
    offloading = [c for c in known.values() if c.kind != "recompute"]
    if len(offloading) == 1:
        return offloading[0]
    raise ConfigError(
        section=section,
        key="connector",
        got="nothing",
        expected="a name, since [connectors] has " + (", ".join(c.name for c in offloading) or "none that offloads"),
        source=config.source,
    )


def arm_key(item: pytest.Item, state: PluginState) -> str:
    """Return what groups a test with others of the same boot; used for ordering only, so never an error."""
    try:
        marks = read_marks(item)
        connector = choose_connector(state.config, marks.connector, section=item.nodeid)
    except KVOffloadError:
        return ""
    return repr((connector, sorted(marks.engine.items()), sorted(marks.model.items())))


def fail(error: KVOffloadError) -> Any:
    """End the test with the error's own text: the traceback through this plugin helps nobody."""
    raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.fixture(scope="session")
def kvoffload_config(request: pytest.FixtureRequest) -> KVOffloadConfig:
    """The configuration of this run: the file, with command-line options applied."""
    try:
        return request.config.stash[state_key].config
    except ConfigError as error:
        return fail(error)  # type: ignore[no-any-return]


def _overridden(request: pytest.FixtureRequest, base: Any, section: str) -> Any:
    from pytest_kvoffload.config import override

    try:
        values = getattr(read_marks(request.node), section)
        return override(base, values, section=f"@pytest.mark.kvoffload {section}", source=request.node.nodeid)
    except ConfigError as error:
        return fail(error)


@pytest.fixture
def kvoffload_engine(request: pytest.FixtureRequest, kvoffload_config: KVOffloadConfig) -> EngineConfig:
    """Which vLLM runs the server of this test."""
    return _overridden(request, kvoffload_config.engine, "engine")  # type: ignore[no-any-return]


@pytest.fixture
def kvoffload_model(request: pytest.FixtureRequest, kvoffload_config: KVOffloadConfig) -> ModelConfig:
    """The model that the server of this test serves."""
    return _overridden(request, kvoffload_config.model, "model")  # type: ignore[no-any-return]


@pytest.fixture
def kvoffload_workload(request: pytest.FixtureRequest, kvoffload_config: KVOffloadConfig) -> WorkloadConfig:
    """The workload of this test."""
    return _overridden(request, kvoffload_config.workload, "workload")  # type: ignore[no-any-return]


@pytest.fixture
def kvoffload_connector(request: pytest.FixtureRequest, kvoffload_config: KVOffloadConfig) -> ConnectorConfig:
    """The connector that this test measures."""
    try:
        return choose_connector(kvoffload_config, read_marks(request.node).connector, section=request.node.nodeid)
    except ConfigError as error:
        return fail(error)  # type: ignore[no-any-return]


def _arm(state: PluginState, engine: EngineConfig, model: ModelConfig, connector: ConnectorConfig) -> Arm:
    """Return the arm, attached to a running server where the command line names one for it, else skip the test."""
    import dataclasses

    from pytest_kvoffload.session import Arm

    urls = state.options.urls
    if urls:
        url = urls.get(connector.name) or urls.get("")
        if url is None:
            pytest.skip(f"no --kvoffload-url {connector.name}=URL: the attached servers are {', '.join(urls)}")
        if "" in urls:
            from pytest_kvoffload.fixtures_session import skip_unless_it_runs

            skip_unless_it_runs(url, connector, engine, model)
        engine = dataclasses.replace(engine, kind="attach", url=url, metrics_urls=state.options.metrics_urls)
    return Arm(engine=engine, model=model, connector=connector)


@pytest.fixture
def kvoffload_server(
    request: pytest.FixtureRequest,
    kvoffload_engine: EngineConfig,
    kvoffload_model: ModelConfig,
    kvoffload_connector: ConnectorConfig,
) -> Iterator[RunningServer]:
    """A running server with this test's connector. It is shared by the run: leave it as you found it."""
    state = request.config.stash[state_key]
    arm = _arm(state, kvoffload_engine, kvoffload_model, kvoffload_connector)
    with state.session.exclusive():
        try:
            server = state.session.server(arm)
        except KVOffloadError as error:
            fail(error)
        yield server


@pytest.fixture
def kvoffload_measure(
    request: pytest.FixtureRequest,
    kvoffload_config: KVOffloadConfig,
    kvoffload_engine: EngineConfig,
    kvoffload_model: ModelConfig,
    kvoffload_workload: WorkloadConfig,
) -> Callable[..., Measurement]:
    """A function that measures a connector: ``kvoffload_measure("native", sessions=24) -> Measurement``.

    The first argument is a name of ``[connectors]`` or a :class:`ConnectorConfig`; keywords override the workload.
    A measurement is taken once in a run and then shared.
    """
    from pytest_kvoffload.config import override

    state = request.config.stash[state_key]

    def measure(connector: str | ConnectorConfig, /, **workload: Any) -> Measurement:
        try:
            if isinstance(connector, str):
                connector = choose_connector(kvoffload_config, connector, section=request.node.nodeid)
            chosen = override(kvoffload_workload, workload, section="kvoffload_measure", source=request.node.nodeid)
            arm = _arm(state, kvoffload_engine, kvoffload_model, connector)
            noted = state.gate.note(request.node, arm, kvoffload_engine, chosen) if state.gate else None
            measurement = state.session.measure(arm, chosen)
            if noted is not None:
                noted.taken(measurement)
            return measurement
        except KVOffloadError as error:
            return fail(error)  # type: ignore[no-any-return]

    return measure


@pytest.fixture
def kvoffload_measurement(
    kvoffload_measure: Callable[..., Measurement], kvoffload_connector: ConnectorConfig
) -> Measurement:
    """All evidence about this test's connector under this test's workload."""
    return kvoffload_measure(kvoffload_connector)


@pytest.fixture
def kvoffload_control(
    request: pytest.FixtureRequest,
    kvoffload_config: KVOffloadConfig,
    kvoffload_measure: Callable[..., Measurement],
) -> Measurement:
    """The control arm under the same workload: the mark's ``control``, else the connector of kind ``recompute``."""
    from pytest_kvoffload.records import ConnectorConfig

    name = read_marks(request.node).control
    if name is None:
        controls = [c for c in kvoffload_config.connectors.values() if c.kind == "recompute"]
        control = controls[0] if controls else ConnectorConfig(name="control", kind="recompute")
        return kvoffload_measure(control)
    return kvoffload_measure(name)


@pytest.fixture(scope="session")
def kvoffload_chaos(request: pytest.FixtureRequest) -> Iterator[Callable[[Arm, WorkloadConfig], Chaos]]:
    """Stages for faults, one a configuration, shared by the run; taken down at its end."""
    from contextlib import ExitStack

    state, stages = request.config.stash[state_key], dict[str, Any]()
    with ExitStack() as stack:

        def stage(arm: Arm, workload: WorkloadConfig) -> Chaos:
            from pytest_kvoffload.faults import Chaos

            if arm.key not in stages:
                stages[arm.key] = stack.enter_context(Chaos(state.session, arm, workload))
            return stages[arm.key]  # type: ignore[no-any-return]

        yield stage


@pytest.fixture
def kvoffload_fault(
    kvoffload_config: KVOffloadConfig,
    kvoffload_engine: EngineConfig,
    kvoffload_model: ModelConfig,
    kvoffload_connector: ConnectorConfig,
    kvoffload_workload: WorkloadConfig,
    kvoffload_chaos: Callable[[Arm, WorkloadConfig], Chaos],
    request: pytest.FixtureRequest,
) -> Callable[..., FaultResult]:
    """A function that breaks this test's connector: ``kvoffload_fault("disk_full") -> FaultResult``.

    Keywords override the workload. A fault that does not apply skips the test; one that shows nothing fails it.
    """
    import dataclasses

    from pytest_kvoffload.config import override
    from pytest_kvoffload.session import Arm

    def run(name: str, /, **workload: Any) -> FaultResult:
        from pytest_kvoffload.faults import find_faults
        from pytest_kvoffload.faults.built_in import for_chaos

        try:
            (fault,) = find_faults((name,))
            chosen = override(kvoffload_workload, workload, section="kvoffload_fault", source=request.node.nodeid)
            made = dataclasses.replace(
                kvoffload_config, engine=kvoffload_engine, model=kvoffload_model, workload=chosen
            )
            made = for_chaos(made)
            arm = Arm(engine=made.engine, model=made.model, connector=kvoffload_connector)
            result = kvoffload_chaos(arm, made.workload).run(fault, workload=made.workload)
        except KVOffloadError as error:
            return fail(error)  # type: ignore[no-any-return]
        if result.verdict == "not-applicable":
            pytest.skip(f"{name}: {result.reason}")
        if result.verdict == "inconclusive":
            pytest.fail(f"{name}: {result.reason}", pytrace=False)
        return result

    return run
