"""systemd units (and Podman's Quadlet ``.container`` files)."""

from __future__ import annotations

import re
from dataclasses import replace

from pytest_kvoffload.lint.model import Limits, Quantity, Value
from pytest_kvoffload.lint.sources.argv import Surroundings, launch_from_image
from pytest_kvoffload.lint.sources.collect import Collector, Word, comments_near, file_words, quantity
from pytest_kvoffload.lint.sources.shell import Script
from pytest_kvoffload.lint.sources.text import Mapped
from pytest_kvoffload.lint.sources.yamlwords import env_vars, seeded_state, shlex_words

Entries = list[tuple[str, int, Word, str]]


def settings(text: Mapped) -> list[tuple[str, str, Mapped, int]]:
    """Return (section, key, value, offset of the key) in file order, continuation lines joined."""
    result: list[tuple[str, str, Mapped, int]] = []
    section = ""
    position = 0
    size = len(text)
    while position < size:
        stop = text.text.find("\n", position)
        stop = size if stop < 0 else stop
        line = text.text[position:stop]
        start = position
        while line.rstrip(" \t").endswith("\\") and not line.lstrip().startswith(("#", ";")) and stop < size:
            following = text.text.find("\n", stop + 1)
            stop = size if following < 0 else following
            line = text.text[start:stop]
        position = stop + 1
        head = re.match(r"[ \t]*\[([^\]\n]+)\]", line)
        pair = re.match(r"[ \t]*([A-Za-z][A-Za-z0-9]*)[ \t]*=[ \t]*", line)
        if head:
            section = head.group(1)
        elif pair and not line.lstrip().startswith(("#", ";")):
            value = text[start + pair.end() : stop]
            result.append((section, pair.group(1), value, text.offset(start + pair.start(1))))
    return result


def read_systemd(out: Collector, text: Mapped) -> None:
    """Read one unit."""
    entries: Entries = []
    complete = True
    limits = Limits()
    words = file_words(out)
    commands: list[Mapped] = []
    found = settings(text)
    for _, key, value, _at in found:
        if key == "Environment":
            entries.extend(_environment(value))
        elif key == "EnvironmentFile":
            complete = False
        elif key in ("MemoryMax", "MemoryLimit"):
            limits = replace(limits, memory_limit=_quantity(out, value))
        elif key in ("MemoryHigh", "MemoryLow"):
            limits = replace(limits, memory_request=_quantity(out, value))
        elif key == "LimitMEMLOCK":
            limits = replace(limits, memlock_unlimited=value.text.strip() in ("infinity", "unlimited"))
        elif key == "Description" and value.text.strip():
            words.append(out.value(value.strip()))
        elif key in ("ExecStart", "ExecStartPre"):
            commands.append(value)
    sections = {section for section, *_ in found}
    if "Container" in sections:
        _quadlet(out, found, entries, complete, limits, words)
        return
    for command in commands:
        first = out.location(command.at).line
        last = out.location(command.end).line
        said = tuple(dict.fromkeys([*words, *comments_near(out, first, last)]))
        around = Surroundings(source="systemd", limits=limits, words=said, env_complete=complete)
        with out.inside(around, None):
            _run(out, command, entries, list(said))


def _run(out: Collector, command: Mapped, entries: Entries, said: list[Value]) -> None:
    """ExecStart is split much as a shell does it; the leading ``-@:+!`` are systemd's own."""
    lead = re.match(r"[-@:+!]*", command.text)
    text = command[lead.end() if lead else 0 :]
    blank = re.sub(r"(?m)(?<=\\\n)[ \t]*[#;][^\n]*$", lambda m: " " * (len(m.group()) - 1) + "\\", text.text)
    blank = re.sub(r"\\[ \t]+(?=\n)", lambda m: " " * (len(m.group()) - 1) + "\\", blank)
    script = Script(out, text.replaced(blank), "systemd")
    script.extra_words = said
    script.run(seeded_state(entries))


def _environment(value: Mapped) -> Entries:
    entries: Entries = []
    for word in shlex_words(value):
        name, equals, _ = word.text.partition("=")
        if equals and re.fullmatch(r"\w+", name):
            inner = word.value[len(name) + 1 :]
            entries.append((name, word.start, Word(inner, inner.at, word.end, quoted=word.quoted), "Environment"))
    return entries


def _quantity(out: Collector, value: Mapped) -> Quantity:
    return quantity(out, value.strip(), "systemd")


def _quadlet(
    out: Collector,
    found: list[tuple[str, str, Mapped, int]],
    entries: Entries,
    complete: bool,
    limits: Limits,
    said: list[Value],
) -> None:
    """``[Container]``: Image, Exec, ShmSize, PodmanArgs."""
    from pytest_kvoffload.lint.sources.containers import container_run

    image: Word | None = None
    arguments: list[Word] = []
    options: list[Word] = []
    entrypoint: list[Word] = []
    for section, key, value, _ in found:
        if section != "Container":
            continue
        if key == "Image":
            image = next(iter(shlex_words(value)), None)
        elif key == "Exec":
            arguments = shlex_words(value)
        elif key == "Entrypoint":
            entrypoint = shlex_words(value)
        elif key == "PodmanArgs":
            options.extend(shlex_words(value))
        elif key == "ShmSize":
            limits = replace(limits, shm=quantity(out, value.strip(), "docker"))
        elif key == "EnvironmentFile":
            complete = False
    if image is None:
        return
    run = container_run(out, options, (), "podman")
    limits = replace(
        limits,
        shm=limits.shm or run.limits.shm,
        ipc_host=run.limits.ipc_host,
        memory_limit=limits.memory_limit or run.limits.memory_limit,
        container=True,
        container_kind="podman",
    )
    around = Surroundings(
        source="systemd",
        env=(*env_vars(out, entries), *run.env),
        words=tuple(dict.fromkeys(said)),
        limits=limits,
        env_complete=complete,
    )
    launch = launch_from_image(out, image, arguments, around, entrypoint)
    if launch is not None:
        out.add_launch(launch)
