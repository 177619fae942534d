"""YAML of any other kind: values under telling keys are shell (CI steps, SkyPilot, Ansible, Buildkite, GitLab)."""

from __future__ import annotations

from pytest_kvoffload.lint.model import Value
from pytest_kvoffload.lint.sources.collect import Collector, Word
from pytest_kvoffload.lint.sources.formats import trigger
from pytest_kvoffload.lint.sources.shell import Script
from pytest_kvoffload.lint.sources.text import join
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import environment, seeded_state

COMMAND_KEYS = {
    "run", "script", "command", "commands", "cmd", "shell", "entrypoint", "setup", "before_script", "after_script",
    "ansible.builtin.shell", "ansible.builtin.command", "startup_script", "bash", "start", "server_cmd", "serve",
    "inlineScript", "start_command", "launch", "launch_command", "server_command", "steps", "user_data", "startup",
}  # fmt: skip
_ENV_KEYS = ("env", "envs", "environment", "variables", "env_vars")


def read_commands(out: Collector, document: YNode) -> None:
    """Walk all mappings for commands; environment blocks on the way down apply."""
    _walk(out, document, [], [], 0)


def _walk(
    out: Collector, node: YNode, entries: list[tuple[str, int, Word, str]], said: list[Value], depth: int
) -> None:
    out.spend()
    if depth > 40 or node.kind == "scalar":
        return
    if node.kind == "seq":
        for item in node.items:
            _walk(out, item, entries, said, depth + 1)
        return
    here = list(entries)
    for wanted in _ENV_KEYS:
        block = node.get(wanted)
        if block is not None and block.kind != "scalar":
            more, _ = environment(out, block, "env")
            here.extend(more)
    words = list(said)
    for wanted in ("name", "label", "title", "description"):
        name = node.get(wanted)
        if name is not None and name.kind == "scalar" and name.scalar:
            words.append(out.value(name.text))
    for key, value in node.members():
        if key.scalar in COMMAND_KEYS and value.kind == "scalar" and trigger(value.scalar):
            run_shell(out, value, here, words)
        elif key.scalar in COMMAND_KEYS and value.kind == "seq" and _are_lines(value):
            text = join([i.text for i in value.items], at=value.at, glue="\n") if value.items else None
            if text is not None and trigger(text.text):
                script = Script(out, text, "shell")
                script.extra_words = words
                script.run(seeded_state(here))
        elif key.scalar not in _ENV_KEYS:
            _walk(out, value, here, words, depth + 1)


def _are_lines(node: YNode) -> bool:
    """Whether a list holds script lines, not the words of one command."""
    return all(i.kind == "scalar" and not i.scalar.startswith("-") for i in node.items)


def run_shell(
    out: Collector, node: YNode, entries: list[tuple[str, int, Word, str]], words: list[Value], outer: str = "yaml"
) -> None:
    """Read one scalar as a shell script that runs with the given variables."""
    out.embedded.append(outer)
    try:
        script = Script(out, node.text, "shell")
        script.extra_words = list(words)
        script.run(seeded_state(entries))
    finally:
        out.embedded.pop()
