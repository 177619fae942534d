"""Dockerfiles: instructions from dockerfile-parse, then ENV, ENTRYPOINT and CMD of each stage as one launch."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import dataclass, field, replace
from typing import Any

from dockerfile_parse import DockerfileParser

from pytest_kvoffload.lint.model import Limits
from pytest_kvoffload.lint.sources.argv import Surroundings, launch_from_image
from pytest_kvoffload.lint.sources.collect import Collector, Word, comments_near, file_words
from pytest_kvoffload.lint.sources.compose import interpolated
from pytest_kvoffload.lint.sources.formats import trigger
from pytest_kvoffload.lint.sources.shell import Script
from pytest_kvoffload.lint.sources.shell_commands import shell_text
from pytest_kvoffload.lint.sources.text import Mapped, hole, join
from pytest_kvoffload.lint.sources.yamltree import read_yaml
from pytest_kvoffload.lint.sources.yamlwords import env_vars, seeded_state, shlex_words, words_of_node

Entries = list[tuple[str, int, Word, str]]


@dataclass(slots=True)
class Stage:
    """What one ``FROM`` has gathered."""

    image: Word | None = None
    name: str = ""
    env: Entries = field(default_factory=list)
    arguments: Entries = field(default_factory=list)
    entrypoint: tuple[list[Word], Mapped | None] | None = None
    command: tuple[list[Word], Mapped | None] | None = None


def read_dockerfile(out: Collector, text: Mapped) -> None:
    """Read all stages."""
    stages: list[Stage] = []
    stage = Stage()
    starts = [0]
    starts.extend(m.end() for m in re.finditer("\n", text.text))
    for item in _structure(text.text):
        out.spend(5)
        first = starts[min(item["startline"], len(starts) - 1)]
        last = item["endline"] + 1
        body = text[first : starts[last] if last < len(starts) else len(text)]
        name = item["instruction"].upper()
        keyword = re.match(r"[ \t]*[A-Za-z]+[ \t]*", body.text)
        if keyword is None:
            continue
        value = _without_comments(body[keyword.end() :])
        if name == "FROM":
            stages.append(stage)
            stage = _next_stage(stage, stages, value)
        elif name == "ENV":
            stage.env.extend(_pairs(value, stage, "ENV"))
        elif name == "ARG":
            stage.arguments.extend(_pairs(value, stage, "ARG"))
        elif name == "ENTRYPOINT":
            stage.entrypoint, stage.command = _command(value), None
        elif name == "CMD":
            stage.command = _command(value)
        elif name == "RUN" and trigger(value.text):
            _run(out, value, stage)
    stages.append(stage)
    for one in stages:
        _launch(out, one)


def _structure(text: str) -> list[dict[str, Any]]:
    """Split into instructions; its log lines about odd files are of no use here."""
    logger = logging.getLogger("dockerfile_parse.parser")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        stream: Any = io.BytesIO(text.encode("utf-8", "replace"))
        return [dict(item) for item in DockerfileParser(fileobj=stream).structure]
    except (ValueError, KeyError, IndexError, AttributeError, TypeError):
        return []
    finally:
        logger.setLevel(level)


def _without_comments(text: Mapped) -> Mapped:
    """Blank comment lines between continuation lines, and make continuations blanks."""
    plain = re.sub(r"(?m)^[ \t]*#[^\n]*\n", lambda m: " " * len(m.group()), text.text)
    return text.replaced(plain)


def _next_stage(stage: Stage, stages: list[Stage], value: Mapped) -> Stage:
    words = [w for w in shlex_words(value) if not w.text.startswith("--")]
    alias = words[2].text if len(words) > 2 and words[1].text.lower() == "as" else ""
    following = Stage(name=alias, arguments=[a for s in (stages[0], stage) for a in s.arguments])
    if words:
        base = next((s for s in stages if s.name and s.name == words[0].text), None)
        if base is not None:
            following.image, following.env = base.image, list(base.env)
            following.entrypoint, following.command = base.entrypoint, base.command
        else:
            image = _substituted(words[0].value, following)
            following.image = Word(image, words[0].start, words[0].end)
    return following


_REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:[-+])([^}]*))?\})")


def _substituted(text: Mapped, stage: Stage) -> Mapped:
    """Replace ``$NAME`` by what ENV and ARG have said; an ARG's value is only a default."""
    if "$" not in text.text:
        return text
    env = {name: word.value for name, _, word, _ in stage.env}
    arguments = {name: word.value for name, _, word, _ in stage.arguments}
    parts: list[Mapped] = []
    last = 0
    for match in _REFERENCE.finditer(text.text):
        parts.append(text[last : match.start()])
        name = match.group(1) or match.group(2)
        if name in env:
            parts.append(env[name])
        elif name in arguments:
            known = arguments[name]
            parts.append(Mapped(known.text, known.offsets, known.at, True))
        elif match.group(3) == ":-":
            parts.append(interpolated(text[match.start() : match.end()]))
        else:
            parts.append(hole(text.offset(match.start())))
        last = match.end()
    parts.append(text[last:])
    return join(parts, at=text.at)


def _pairs(value: Mapped, stage: Stage, origin: str) -> Entries:
    entries: Entries = []
    words = shlex_words(value)
    if words and "=" not in words[0].text:
        if origin == "ARG" or len(words) < 2:
            return entries
        # The old form: ENV NAME the rest of the line
        rest = value[value.text.find(words[0].text) + len(words[0].text) :].strip()
        return [(words[0].text, words[0].start, Word(_substituted(rest, stage), rest.at, rest.end), origin)]
    for word in words:
        name, equals, _ = word.text.partition("=")
        if equals:
            inner = _substituted(word.value[len(name) + 1 :], stage)
            entries.append((name, word.start, Word(inner, inner.at, word.end, quoted=word.quoted), origin))
    return entries


def _command(value: Mapped) -> tuple[list[Word], Mapped | None]:
    """Return the words of the exec form, or the text of the shell form."""
    stripped = value.strip()
    if stripped.text.startswith("["):
        flat = stripped.replaced(re.sub(r"\\[ \t]*\n", lambda m: " " * len(m.group()), stripped.text))
        documents = read_yaml(flat).documents
        if documents and documents[0].kind == "seq":
            return words_of_node(documents[0]), None
    return [], stripped


def _run(out: Collector, value: Mapped, stage: Stage) -> None:
    text = value
    heredoc = re.match(r"\s*<<-?['\"]?(\w+)['\"]?[^\n]*\n", value.text)
    if heredoc:
        text = value[heredoc.end() :]
    Script(out, text, "dockerfile").run(seeded_state(stage.env))


def _launch(out: Collector, stage: Stage) -> None:
    entrypoint, command = stage.entrypoint, stage.command
    if stage.image is None or (entrypoint is None and command is None):
        _loose(out, stage)
        return
    place = (command or entrypoint or ([], None))[1]
    words = [*(entrypoint[0] if entrypoint else []), *(command[0] if command else [])]
    at = words[0].start if words else place.at if place is not None else stage.image.start
    first = out.location(at).line
    around = Surroundings(
        source="dockerfile",
        env=env_vars(out, stage.env),
        words=tuple(dict.fromkeys(file_words(out) + comments_near(out, first, first + 6))),
        limits=Limits(container=True, container_kind="docker"),
        image=out.of_word(stage.image),
        vllm_version=out.versions.get("vllm"),
        lmcache_version=out.versions.get("lmcache"),
        env_complete=False,
    )
    before = len(out.launches)
    for form in (entrypoint, command):
        text = form[1] if form is not None else None
        if text is not None and trigger(text.text):
            _shell(out, text, stage, around)
    script = shell_text(words)
    if script is not None and trigger(script.text):
        _shell(out, script, stage, around)
    elif len(out.launches) == before and words:
        launch = launch_from_image(
            out, stage.image, command[0] if command else [], around, entrypoint[0] if entrypoint else ()
        )
        if launch is not None:
            out.add_launch(launch)
    if len(out.launches) == before:
        _loose(out, stage)


def _shell(out: Collector, text: Mapped, stage: Stage, around: Surroundings) -> None:
    with out.inside(replace(around, env=()), around.image):
        script = Script(out, text, "dockerfile")
        script.extra_words = list(around.words)
        script.run(seeded_state(stage.env))


def _loose(out: Collector, stage: Stage) -> None:
    for variable in env_vars(out, stage.env):
        if variable not in out.loose_env:
            out.loose_env.append(variable)
