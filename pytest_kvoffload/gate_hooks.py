"""``pytest --kvoffload-gate``: the hooks that judge a whole run, registered only where the option is given.

The controller of pytest-xdist judges once; its workers only say what they deselected and which test asked for what.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kvoffload.errors import ExitCode, KVOffloadError, MissingExtraError
from pytest_kvoffload.options import read_marks

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from pytest_kvoffload.fixtures import PluginState
    from pytest_kvoffload.gate.suite import Question, Selection, SuiteArm, Use
    from pytest_kvoffload.gate.verdict import Verdict
    from pytest_kvoffload.records import EngineConfig, Measurement, WorkloadConfig
    from pytest_kvoffload.session import Arm

INCONCLUSIVE_STATUS = 100 + ExitCode.INCONCLUSIVE
"""Exit status of a run whose verdict is inconclusive: pytest takes the low numbers (3 is its internal error)."""
DESELECTED_KEY = "kvoffload_deselected"
USES_FILE = "uses.jsonl"
_ENGINE_FIELDS = ("vllm_version", "max_model_len", "num_gpu_blocks", "python", "args", "env")
_SHOWN_FIELDS = ("vllm_version", "max_model_len", "num_gpu_blocks")


class GateHooks:
    """Sees which tests run, and judges or records what they measured when the run is over.

    Raises:
        KVOffloadError: a threshold, a margin or a baseline that cannot be meant, before anything is collected.
    """

    def __init__(self, state: PluginState) -> None:
        self._state = state
        self._selected: set[str] = set()
        self._finished: set[str] = set()
        self._deselected: set[str] = set()
        self._verdict: Verdict | None = None
        self._lines: list[str] = []
        self._question = None if state.is_worker else read_question(state)

    # ------------------------------------------------------------------------------- what the tests ask for
    def note(self, item: pytest.Item, arm: Arm, engine: EngineConfig, workload: WorkloadConfig) -> Noted:
        """Write down that a test asks for a measurement; :meth:`Noted.taken` adds what came of it."""
        from pytest_kvoffload.gate.baseline import BaselineKey, model_name
        from pytest_kvoffload.gate.calibration import this_runner
        from pytest_kvoffload.gate.suite import Use

        config = self._state.config
        key = BaselineKey(
            runner=this_runner(),
            model=model_name(arm.model),
            engine=arm.engine.kind,
            connector=arm.connector.name,
            variant=", ".join([*_differ(workload, config.workload), *_engine_differs(engine, config.engine)]),
        )
        use = Use(test=plain_id(item.nodeid), key=key, judged=read_marks(item).gate)
        noted = Noted(self._state.run_dir / USES_FILE, use)
        noted.append(use)
        return noted

    # --------------------------------------------------------------------------------------- which tests run
    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Remember what ``-k``, ``-m``, ``--deselect`` and other plugins left out."""
        self._deselected.update(plain_id(item.nodeid) for item in items)
        if self._state.is_worker:
            self._state.pytest_config.workeroutput[DESELECTED_KEY] = sorted(self._deselected)  # type: ignore[attr-defined]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remember what is to run."""
        self._selected.update(plain_id(item.nodeid) for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Remember what is to run, in the controller."""
        self._selected.update(map(plain_id, ids))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn what a worker deselected."""
        self._deselected.update(getattr(node, "workeroutput", {}).get(DESELECTED_KEY, ()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what came to its end; a test whose worker crashed has one report, of no usual phase."""
        if report.when not in {"setup", "call"}:
            self._finished.add(plain_id(report.nodeid))

    # ----------------------------------------------------------------------------------------------- the end
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge or record, once, and make the run red where the verdict is not a pass."""
        question = self._question
        if question is None or self._state.options.collect_only:
            return
        from pytest_kvoffload.gate.suite import suite_arms

        uses, problems = read_uses(self._state.run_dir / USES_FILE)
        measurements, unreadable = read_measurements(self._state.run_dir)
        self._lines += [*problems, *unreadable]
        arms = suite_arms(uses, measurements)
        selection = self._selection(session)
        if self._state.options.gate:
            self._judge(session, arms, selection, question)
        else:
            self._record(session, arms, selection, question)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Write the section: the verdict, or what was recorded."""
        if self._question is None or self._state.options.collect_only:
            return
        terminalreporter.section("kvoffload gate" if self._state.options.gate else "kvoffload baselines")
        if self._verdict is not None:
            from pytest_kvoffload.output.gate_text import text

            colour = {"pass": "green", "fail": "red", "inconclusive": "yellow"}[self._verdict.outcome]
            *evidence, last = text(self._verdict).splitlines()
            for line in evidence:
                terminalreporter.write_line(line)
            terminalreporter.write_line(last, **{colour: True, "bold": True})
        for line in self._lines:
            terminalreporter.write_line(line)

    def _judge(
        self, session: pytest.Session, arms: Sequence[SuiteArm], selection: Selection, question: Question
    ) -> None:
        from pytest_kvoffload.gate.suite import judge_suite
        from pytest_kvoffload.output.gate_text import document, markdown

        self._verdict = verdict = judge_suite(arms, selection, question)
        folder = self._state.run_dir
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "verdict.json").write_bytes(document(verdict))
        (folder / "verdict.md").write_text(markdown(verdict), encoding="utf-8")
        self._lines.append(f"evidence: {folder / 'verdict.json'}")
        if session.exitstatus == pytest.ExitCode.OK and verdict.outcome != "pass":
            failed = verdict.outcome == "fail"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if failed else INCONCLUSIVE_STATUS

    def _record(
        self, session: pytest.Session, arms: Sequence[SuiteArm], selection: Selection, question: Question
    ) -> None:
        from pytest_kvoffload.gate.baseline import save
        from pytest_kvoffload.gate.reference import commit_of
        from pytest_kvoffload.gate.suite import record_suite

        if session.exitstatus != pytest.ExitCode.OK:
            self._lines.append("nothing recorded: a baseline is taken from a run whose tests all pass")
            return
        folder = baseline_folder(self._state)
        try:
            made, kept = record_suite(arms, selection, question.baselines, commit=commit_of(folder))
        except KVOffloadError as error:
            self._lines.append(f"nothing recorded: {error}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            return
        for baseline in made:
            entry = baseline.newest
            path = save(folder, baseline)
            self._lines.append(f"recorded {baseline.key.label}: {entry.requests} requests, {path}")
        self._lines += kept
        if not made and not kept:
            self._lines.append("nothing recorded: no test took a measurement that is to be judged")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _selection(self, session: pytest.Session) -> Selection:
        from pytest_kvoffload.gate.suite import Selection

        config = self._state.pytest_config
        reruns = any(config.getoption(name, None) for name in ("lf", "stepwise"))
        stopped = session.shouldfail or session.shouldstop
        interrupted = session.exitstatus in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR}
        finished = frozenset(self._finished)
        paths = CommandPaths(config)
        return Selection(
            selected=frozenset(self._selected) | finished,
            finished=finished,
            deselected=frozenset(self._deselected),
            left_out=lambda test: reruns or paths.leave_out(test),
            narrowed=bool(self._deselected) or reruns or paths.narrow,
            stopped=str(stopped) if stopped else "interrupted" if interrupted else "",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Noted:
    """A test's question for a measurement, written down."""

    path: Path
    use: Use

    def taken(self, measurement: Measurement) -> None:
        """Add the file of the measurement that came of it."""
        file = Path(measurement.artefacts["measurement"]).name
        self.append(dataclasses.replace(self.use, file=file))

    def append(self, use: Use) -> None:
        """Add one line at once: several workers write to this file."""
        from pytest_kvoffload.records import to_json

        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, to_json(use) + b"\n")
        finally:
            os.close(descriptor)


class CommandPaths:
    """What the paths on the command line leave out."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        where = config.invocation_params.dir
        given = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
        self._by_name = bool(config.getoption("pyargs", False))
        pairs = [(word.partition("::")[0], word.partition("::")[2]) for word in given]
        self._given = [((where / path).resolve(), rest) for path, rest in pairs]
        ignored = [*(config.getoption("ignore", None) or ()), *(config.getoption("ignore_glob", None) or ())]
        self._ignored = [(where / path).resolve() for path in ignored]

    @property
    def narrow(self) -> bool:
        """Whether anything is left out: paths that are not the whole root directory, or ignored ones."""
        return bool(self._ignored) or any(path != self._root.resolve() for path, _ in self._given)

    def leave_out(self, test: str) -> bool:
        """Whether a test, by its node id, lies outside what the command line names."""
        path, _, name = test.partition("::")
        file = (self._root / path).resolve()
        if any(_under(file, ignored) or file.match(str(ignored)) for ignored in self._ignored):
            return True
        if not self._given or self._by_name:
            return False
        return not any(_under(file, place) and _named(name, rest) for place, rest in self._given)


def read_question(state: PluginState) -> Question:
    """Read what is asked: thresholds, policy, noise floor and baselines; errors come before any test runs."""
    from importlib.util import find_spec

    for package in ("numpy", "scipy"):
        if find_spec(package) is None:
            option = "--kvoffload-gate" if state.options.gate else "--kvoffload-baseline-update"
            raise MissingExtraError(option, "gate", package)
    from pytest_kvoffload.gate.baseline import load_all
    from pytest_kvoffload.gate.calibration import CALIBRATION_FILE, check_margin, this_runner
    from pytest_kvoffload.gate.judge import default_thresholds
    from pytest_kvoffload.gate.policy import policy_of
    from pytest_kvoffload.gate.suite import Question
    from pytest_kvoffload.gate.thresholds import CONTROL, parse_thresholds

    config = state.config
    policy, _ = policy_of(config.gate, {}, {}, source=config.source)
    asked = parse_thresholds(config.thresholds, arms=(*config.connectors, CONTROL), source=config.source)
    folder, runner = baseline_folder(state), this_runner()
    kind = "attach" if state.options.urls else config.engine.kind
    recomputing = [name for name, connector in config.connectors.items() if connector.kind == "recompute"]
    here = [b for b in load_all(folder) if b.key.runner == runner and b.key.engine == kind]
    return Question(
        policy=policy,
        thresholds=asked or default_thresholds(policy),
        baselines={baseline.key: baseline for baseline in here},
        where=str(folder),
        calibration=check_margin(_beside(state) / CALIBRATION_FILE, policy, asked),
        control=recomputing[0] if recomputing and CONTROL not in config.connectors else CONTROL,
    )


def baseline_folder(state: PluginState) -> Path:
    """Return the folder of baselines."""
    from pytest_kvoffload.gate.baseline import BASELINE_DIR

    return state.options.baselines or _beside(state) / BASELINE_DIR


def read_uses(path: Path) -> tuple[list[Use], list[str]]:
    """Read which test asked for which measurement; a line that cannot be read is said."""
    import msgspec

    from pytest_kvoffload.gate.suite import Use

    uses: list[Use] = []
    problems: list[str] = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        try:
            uses.append(msgspec.json.decode(line, type=Use))
        except msgspec.MsgspecError as error:
            problems.append(f"{path}, line {number}: {error}")
    return uses, problems


def read_measurements(run_dir: Path) -> tuple[dict[str, Measurement], list[str]]:
    """Read the measurements of a run by the names of their files."""
    from pytest_kvoffload.records import measurement_from_json

    found: dict[str, Measurement] = {}
    problems: list[str] = []
    for path in sorted((run_dir / "measurements").glob("*.json")):
        try:
            found[path.name] = measurement_from_json(path.read_bytes())
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
    return found, problems


def plain_id(nodeid: str) -> str:
    """Return a node id without the group that ``--dist loadgroup`` adds to it."""
    head, _, group = nodeid.rpartition("@")
    return head if head and not any(mark in group for mark in ("]", "::", "/")) else nodeid


def _beside(state: PluginState) -> Path:
    source = state.config.source
    return Path(source).parent if source else state.pytest_config.rootpath


def _differ(workload: WorkloadConfig, usual: WorkloadConfig) -> Iterable[str]:
    for name in (field.name for field in dataclasses.fields(usual)):
        value = getattr(workload, name)
        if name != "seed" and value != getattr(usual, name):
            yield f"{name}={value}"


def _engine_differs(engine: EngineConfig, usual: EngineConfig) -> Iterable[str]:
    """Name what differs; of arguments and environment variables, which may hold secrets, only a digest is shown."""
    import hashlib

    for name in _ENGINE_FIELDS:
        value = getattr(engine, name)
        if value != getattr(usual, name):
            shown = value if name in _SHOWN_FIELDS else hashlib.sha256(repr(value).encode()).hexdigest()[:8]
            yield f"engine.{name}={shown}"


def _under(file: Path, place: Path) -> bool:
    return place == file or place in file.parents


def _named(name: str, asked: str) -> bool:
    return not asked or name == asked or name.startswith((f"{asked}::", f"{asked}["))
