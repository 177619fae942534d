"""GitHub workflows and composite actions: ``run:`` steps with ``env`` of workflow, job and step."""

from __future__ import annotations

import re

from pytest_kvoffload.lint.model import Value
from pytest_kvoffload.lint.sources.collect import Collector, Word
from pytest_kvoffload.lint.sources.formats import trigger
from pytest_kvoffload.lint.sources.generic import read_commands, run_shell
from pytest_kvoffload.lint.sources.text import HOLE, Mapped
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import environment

Entries = list[tuple[str, int, Word, str]]
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)


def read_workflow(out: Collector, document: YNode) -> None:
    """Read all jobs."""
    top, _ = _environment(out, document)
    jobs = document.get("jobs")
    for name, job in jobs.members() if jobs is not None else ():
        if job.kind != "map":
            continue
        own, _ = _environment(out, job)
        said = [
            out.value(node.text)
            for node in (document.get("name"), name, job.get("name"))
            if node is not None and node.scalar
        ]
        _steps(out, job.get("steps"), [*top, *own], said)


def read_action(out: Collector, document: YNode) -> None:
    """Read a composite action's steps."""
    said = [
        out.value(node.text)
        for node in (document.get("name"), document.get("description"))
        if node is not None and node.scalar
    ]
    _steps(out, document.get("runs", "steps"), [], said)


def _names(out: Collector, *nodes: YNode | None) -> list[Value]:
    return [out.value(node.text) for node in nodes if node is not None and node.scalar]


def read_steps(out: Collector, document: YNode) -> None:
    """Read a bare list: Ansible tasks, Buildkite or workflow steps."""
    read_commands(out, document)


def _steps(out: Collector, steps: YNode | None, entries: Entries, said: list[Value]) -> None:
    for step in steps.items if steps is not None and steps.kind == "seq" else ():
        run = step.get("run")
        if run is None or run.kind != "scalar" or not trigger(run.scalar):
            continue
        own, _ = _environment(out, step)
        name = step.get("name")
        words = [*said, out.value(name.text)] if name is not None and name.scalar else list(said)
        node = YNode("scalar", without_expressions(run.text), run.end, run.tag, run.quoted, run.style)
        run_shell(out, node, [*entries, *own], words, "workflow")


def _environment(out: Collector, node: YNode) -> tuple[Entries, bool]:
    entries, complete = environment(out, node.get("env"), "workflow env")
    return [
        (n, at, Word(without_expressions(w.value), w.start, w.end, w.spread, w.quoted), o) for n, at, w, o in entries
    ], complete


def without_expressions(text: Mapped) -> Mapped:
    """Make ``${{ ... }}`` an unresolved piece of the same length."""
    if "${{" not in text.text:
        return text
    return text.replaced(_EXPRESSION.sub(lambda m: re.sub(r"[^\n]", HOLE, m.group()), text.text))
