"""One simple command of a shell script: builtins, wrappers, containers, and server starts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_kvoffload.lint.model import EnvVar, Value
from pytest_kvoffload.lint.sources.argv import (
    DISTINCTIVE,
    NOT_RUNNING,
    Surroundings,
    build_launch,
    find_program,
    launch_from_image,
)
from pytest_kvoffload.lint.sources.collect import Collector, Word, prose
from pytest_kvoffload.lint.sources.containers import container_run, kubectl_run
from pytest_kvoffload.lint.sources.formats import trigger
from pytest_kvoffload.lint.sources.shell_state import State, Variable, env_var
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, empty, join

if TYPE_CHECKING:
    from pytest_kvoffload.lint.sources.shell import Script

Prefix = list[tuple[str, Variable]]

_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)=")
_SHELL_NAMES = {"bash", "sh", "zsh", "dash", "ksh", "ash"}
_CONTAINER = {"docker", "podman", "nerdctl"}
_HARMLESS_SOURCE = re.compile(r"(?:activate|conda\.sh|bashrc|profile|setvars\.sh|nvm\.sh|\.cargo/env)$|^/etc/|^/opt/")
_PIP = re.compile(r"(?i)^(vllm|lmcache)(?:\[[^\]]*\])?(?:==|~=|@)v?(\d[\w.]*)$")


def run_command(
    script: Script, node: Any, words: list[Word], prefix: Prefix, state: State, heredoc: Mapped | None
) -> None:
    """Run one command: change the state, or find a launch in it."""
    name = words[0].text
    script.out.spend(len(words))
    if _lost_continuation(script, node, name, state):
        return
    state.broken = False
    if _builtin(script, words, state, heredoc):
        return
    if name in state.functions and words[0].value.certainty == "known":
        body, owner = state.functions[name]
        for variable_name, variable in prefix:
            state.assign(variable_name, variable)
        owner.call(name, body, state, tuple(words[1:]))
        return
    inner = state
    if prefix:
        inner = state.copy()
        for variable_name, variable in prefix:
            inner.variables.pop(variable_name, None)
            inner.variables[variable_name] = variable
    _remember_versions(script, words)
    find_launches(script, node, words, inner)


def _lost_continuation(script: Script, node: Any, name: str, state: State) -> bool:
    """A line that begins with ``--flag`` is a command of its own: the line above lost its backslash."""
    if not re.match(r"^--?[A-Za-z][\w.-]*", name):
        return False
    start = node.start_byte
    before = script.data[:start]
    line_start = before.rfind(b"\n") + 1
    if before[line_start:].strip():
        return False
    previous_start = before.rfind(b"\n", 0, max(line_start - 1, 0)) + 1
    previous = script.slice(previous_start, max(line_start - 1, 0))
    if not _mark_incomplete(script, script.outer(start)):
        return True
    blanks = re.search(r"\\[ \t]+$", previous.text)
    if blanks:
        script.out.add_problem(
            previous.offset(blanks.start()),
            "blanks after the backslash: the command ends here and the lines below are not part of it",
        )
    elif not state.broken:
        at = script.outer(start)
        if re.match(r"^\s*#", previous.text):
            text = f"a comment ends the command above: {name} is run as a command of its own"
        else:
            text = f"the line above does not end in a backslash: {name} is run as a command of its own"
        script.out.add_problem(at, text)
    state.broken = True
    return True


def _mark_incomplete(script: Script, at: int) -> bool:
    """The launch just above is not what its author meant: nothing may be said about what it lacks."""
    line = script.out.location(at).line
    launches = script.out.launches
    for index in range(len(launches) - 1, -1, -1):
        if 0 <= line - launches[index].location.line < 60:
            launches[index] = replace(launches[index], complete=False)
            return True
    return False


def _builtin(script: Script, words: list[Word], state: State, heredoc: Mapped | None) -> bool:
    name, rest = words[0].text, words[1:]
    texts = [w.text for w in rest]
    if name == "set":
        if "-a" in texts or ("allexport" in texts and "-o" in texts):
            state.allexport = True
        if "+a" in texts or ("allexport" in texts and "+o" in texts):
            state.allexport = False
        if "--" in texts:
            state.positional = tuple(rest[texts.index("--") + 1 :])
        return True
    if name in ("source", "."):
        if rest and not _HARMLESS_SOURCE.search(rest[0].text):
            known = next((c for p, c in reversed(state.files) if p == rest[0].text), None)
            if known is not None:
                script.run_text(known, state)
            else:
                state.env_complete = False
        return True
    if name == "eval":
        if rest:
            text = join([w.value for w in rest], at=rest[0].value.at, glue=" ")
            _adopt(state, script.run_text(text, state.copy()))
        return True
    if name in ("exit", "return"):
        state.dead = True
        return True
    if name == "shift":
        if state.positional is not None:
            count = int(texts[0]) if texts and texts[0].isdigit() else 1
            state.positional = state.positional[count:]
        return True
    if name == "unset":
        for unset in texts:
            state.variables.pop(unset, None)
        return True
    if name in ("read", "mapfile", "readarray"):
        _read(rest, state, heredoc)
        return True
    if name in ("echo", "printf", "log", "info") and rest:
        said = " ".join(texts)
        if len(said) < 400 and HOLE not in said and prose(said):
            script.said.append(Value(text=said, location=script.out.location(rest[0].start), raw=said))
        return name in ("echo", "printf")
    return name in ("cd", ":", "true", "false", "sleep", "wait", "trap", "alias", "ulimit", "module", "umask")


def _adopt(state: State, results: list[State]) -> None:
    """Take over what an ``eval`` has set."""
    last = results[-1]
    state.variables, state.files, state.functions = last.variables, last.files, last.functions
    state.env_complete = last.env_complete


def _read(rest: list[Word], state: State, heredoc: Mapped | None) -> None:
    """``read -r -d '' NAME <<EOF`` gives NAME the here-document; any other ``read`` makes it unknown."""
    from pytest_kvoffload.lint.sources.text import hole

    names = []
    skip = False
    for word in rest:
        if skip:
            skip = False
        elif word.text in ("-d", "-p", "-t", "-n", "-u", "-a", "-i"):
            skip = word.text != "-a"
        elif not word.text.startswith("-") and re.fullmatch(r"[A-Za-z_]\w*", word.text):
            names.append(word)
    for word in names:
        value = hole(word.start)
        if heredoc is not None and len(names) == 1:
            value = heredoc[: len(heredoc.text.rstrip("\n"))]
        state.assign(word.text, Variable((Word(value, value.at, value.end, quoted=True),), word.start, word.end))


def _remember_versions(script: Script, words: list[Word]) -> None:
    """``pip install vllm==0.28.0`` near a launch says which version runs."""
    texts = [w.text for w in words]
    if "install" not in texts and "add" not in texts:
        return
    for word in words:
        match = _PIP.match(word.text)
        if match:
            value = script.out.value(word.value[match.start(2) : match.end(2)])
            script.out.add_version(match.group(1).lower(), value)


def find_launches(script: Script, node: Any, words: list[Word], state: State) -> None:
    """Find a server start in a command, behind any wrappers."""
    env: list[EnvVar] = []
    index, state = _skip_wrappers(script, words, state, env)
    words = words[index:]
    if not words:
        return
    if _may_launch(words):
        launches_in(script, words, surroundings(script, node, state, tuple(env)), state)


def _may_launch(words: list[Word]) -> bool:
    """Rule out most commands before anything is gathered for them."""
    if HOLE in words[0].text or words[0].text.rsplit("/", 1)[-1] in _CONTAINER:
        return True
    return trigger("\n".join(w.text for w in words))


def run_words(out: Collector, words: list[Word], around: Surroundings) -> None:
    """Find launches in words that another format gives (a Python list), with the surroundings it knows."""
    from pytest_kvoffload.lint.sources.shell import Script

    script = Script(out, empty(words[0].start), around.source)
    launches_in(script, words, around, State())


def launches_in(script: Script, words: list[Word], around: Surroundings, state: State) -> None:
    """Find a server start in words from which ``env`` and the like have been taken."""
    name = words[0].text.rsplit("/", 1)[-1]
    if name in _CONTAINER and len(words) > 2:
        sub = [w.text for w in words[1:3]]
        if "run" in sub or "create" in sub:
            _container(script, words, around, state)
            return
    if name in ("kubectl", "oc") and len(words) > 2 and words[1].text == "run":
        launch = kubectl_run(script.out, words[2:], around)
        if launch is not None:
            script.out.add_launch(launch)
        return
    if name in NOT_RUNNING:
        return
    found = find_program(words)
    if found:
        start, first, product = found
        if any(w.text in ("--help", "-h", "--version", "--help=all") for w in words[first:]):
            return
        if name in _CONTAINER or name in ("kubectl", "oc", "ssh"):
            around = replace(around, env=tuple(replace(v, reaches=False) for v in around.env), env_complete=False)
        script.out.add_launch(build_launch(script.out, product, words[start], words[first:], around))
        return
    if _nested_text(script, words, state, name):
        return
    if any(DISTINCTIVE.match(w.text) for w in words[1:]) and name not in NOT_RUNNING:
        script.out.add_launch(build_launch(script.out, "vllm", words[0], words[1:], around))
    elif HOLE in words[0].text or any(w.spread for w in words[:2]):
        joined = " ".join(w.text for w in words[1:])
        if re.search(r"--(?:max-model-len|tensor-parallel-size|served-model-name|gpu-memory-utilization)\b", joined):
            script.out.add_launch(build_launch(script.out, "vllm", words[0], words[1:], around))


def _skip_wrappers(script: Script, words: list[Word], state: State, env: list[EnvVar]) -> tuple[int, State]:
    """Walk over ``exec``, ``nohup``, ``env A=b``, ``sudo`` and the like, collecting the variables they set."""
    index = 0
    while index < len(words):
        name = words[index].text.rsplit("/", 1)[-1]
        if name in ("exec", "nohup", "time", "command", "setsid", "eatmydata", "catchsegv", "builtin"):
            index += 1
            while index < len(words) and words[index].text.startswith("-"):
                index += 2 if words[index].text == "-a" else 1
            continue
        if name in ("env", "sudo"):
            probe = index + 1
            while probe < len(words):
                text = words[probe].text
                match = _ASSIGNMENT.match(text)
                if match:
                    value = words[probe].value[match.end() :]
                    word = Word(value, value.at, words[probe].end, quoted=words[probe].quoted)
                    env.append(env_var(script.out, match.group(1), words[probe].start, word, name))
                elif text in ("-u", "-C", "-g", "-S", "--unset", "--chdir"):
                    probe += 1
                elif not text.startswith("-"):
                    break
                elif text in ("-i", "--ignore-environment"):
                    state = state.copy()
                    state.variables = {}
                probe += 1
            index = probe
            continue
        if name == "srun":
            _srun_exports(script, words[index + 1 :], env)
        break
    return index, state


def _srun_exports(script: Script, words: list[Word], env: list[EnvVar]) -> None:
    """``srun --export=ALL,NAME=value``."""
    for word in words[:30]:
        if not word.text.startswith("--export="):
            continue
        position = len("--export=")
        for part in word.text[position:].split(","):
            match = _ASSIGNMENT.match(part)
            if match:
                value = word.value[position + match.end() : position + len(part)]
                inner = Word(value, value.at, value.end)
                env.append(env_var(script.out, match.group(1), word.value.offset(position), inner, "srun --export"))
            position += len(part) + 1


def surroundings(script: Script, node: Any, state: State, extra: tuple[EnvVar, ...] = ()) -> Surroundings:
    """Gather what a launch of this command would see."""
    out = script.out
    first = out.location(script.outer(node.start_byte)).line
    last = out.location(script.outer_end(node)).line
    return Surroundings(
        source=script.source,
        env=(*out.inherited_env, *state.environment(out), *extra),
        words=script.words_near(first, last),
        limits=out.limits,
        image=out.image,
        vllm_version=out.versions.get("vllm"),
        lmcache_version=out.versions.get("lmcache"),
        replicas=out.replicas,
        complete=out.complete,
        env_complete=state.env_complete and out.env_complete,
        files=(*out.files, *state.files),
    )


def _container(script: Script, words: list[Word], around: Surroundings, state: State) -> None:
    """``docker run``: the host's variables stay outside unless ``-e NAME`` hands them in."""
    out = script.out
    start = next(i for i, w in enumerate(words[:4]) if w.text in ("run", "create")) + 1
    run = container_run(out, words[start:], around.env, words[0].text.rsplit("/", 1)[-1])
    outside = tuple(replace(v, reaches=False) for v in around.env)
    env_complete = run.env_complete
    around = replace(around, env=(*outside, *run.env), limits=run.limits, env_complete=env_complete)
    if run.image is None:
        if run.unknown:
            out.add_unresolved(words[0].start, "the container's options are only known when it runs")
        return
    arguments = list(run.arguments)
    script_text = shell_text([*run.entrypoint, *arguments])
    if script_text is not None and trigger(script_text.text):
        with out.inside(around, out.of_word(run.image)):
            script.run_text(script_text, State())
        return
    launch = launch_from_image(out, run.image, arguments, around, run.entrypoint)
    if launch is not None:
        out.add_launch(launch)


def shell_text(words: list[Word]) -> Mapped | None:
    """Return the script of ``bash -c SCRIPT`` (options may be joined, as in ``-lc``), wherever it stands."""
    for index, word in enumerate(words):
        if word.text.rsplit("/", 1)[-1] in _SHELL_NAMES:
            for place in range(index + 1, min(index + 5, len(words) - 1)):
                if re.fullmatch(r"-\w*c\w*", words[place].text):
                    return words[place + 1].value
                if not words[place].text.startswith("-"):
                    break
    return None


def _nested_text(script: Script, words: list[Word], state: State, name: str) -> bool:
    """A word that is itself a command line: ``bash -c '...'``, ``ssh host "..."``, ``tmux new -d '...'``."""
    exported = state.copy()
    exported.positional = ()
    exported.variables = {k: v for k, v in state.variables.items() if v.exported}
    text = shell_text(words)
    if text is not None and trigger(text.text):
        script.run_text(text, exported)
        return True
    remote = name in ("ssh", "kubectl", "oc", "docker", "podman", "gcloud", "pdsh", "clush", "ray")
    for word in words[1:]:
        if " " in word.text and trigger(word.text) and not word.text.startswith(("{", "[", "-")):
            if not re.search(r"\bserve\b|api_server|launch_server|\bserver\b|docker|python", word.text):
                continue
            before = len(script.out.launches)
            script.run_text(word.value, State() if remote else exported.copy())
            if len(script.out.launches) > before:
                return True
    return False
