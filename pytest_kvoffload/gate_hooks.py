"""``pytest --kvoffload-gate``: the hooks that judge a whole run, registered only where the option is given.

The controller of pytest-xdist judges once; its workers only say what they deselected and which test asked for what.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kvoffload.errors import ExitCode, KVOffloadError, MissingExtraError
from pytest_kvoffload.gate_inputs import (
    USES_FILE,
    CommandPaths,
    Noted,
    plain_id,
    read_measurements,
    read_uses,
    variant_of,
)
from pytest_kvoffload.options import read_marks

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from pytest_kvoffload.fixtures import PluginState
    from pytest_kvoffload.gate.suite import Question, Selection, SuiteArm
    from pytest_kvoffload.gate.verdict import Verdict
    from pytest_kvoffload.records import EngineConfig, WorkloadConfig
    from pytest_kvoffload.session import Arm

INCONCLUSIVE_STATUS = 100 + ExitCode.INCONCLUSIVE
"""Exit status of a run whose verdict is inconclusive: pytest takes the low numbers (3 is its internal error)."""
DESELECTED_KEY = "kvoffload_deselected"


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
            variant=variant_of(workload, engine, usual=(config.workload, config.engine)),
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
            from pytest_kvoffload.output.wrap import clean, fit

            colour = {"pass": "green", "fail": "red", "inconclusive": "yellow"}[self._verdict.outcome]
            said = clean(text(self._verdict))
            if terminalreporter.isatty:
                said = fit(said, width=terminalreporter._tw.fullwidth)
            *evidence, last = said.splitlines()
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


def _beside(state: PluginState) -> Path:
    source = state.config.source
    return Path(source).parent if source else state.pytest_config.rootpath
