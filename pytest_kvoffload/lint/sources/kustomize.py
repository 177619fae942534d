"""Kustomize: patches inline in a kustomization, strategic merge patches, and JSON6902 operation lists."""

from __future__ import annotations

from pytest_kvoffload.lint.model import Limits
from pytest_kvoffload.lint.sources.argv import (
    Surroundings,
    build_launch,
    find_program,
    looks_like_vllm_arguments,
)
from pytest_kvoffload.lint.sources.collect import Collector, Word, comments_near, file_words
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import env_vars, environment, word_of_node, words_of_node


def is_kustomization(document: YNode) -> bool:
    """Whether a mapping is a ``kustomization.yaml``."""
    if document.string("kind") in ("Kustomization", "Component"):
        return True
    keys = ("patches", "patchesStrategicMerge", "patchesJson6902", "configMapGenerator", "kustomize")
    return (
        document.get("kind") is None
        and document.get("resources") is not None
        and any(document.get(k) is not None for k in keys)
    )


def read_kustomization(out: Collector, document: YNode) -> None:
    """Read the inline patches and the generated ConfigMaps' literals."""
    from pytest_kvoffload.lint.sources.kubernetes import embedded
    from pytest_kvoffload.lint.sources.yamlfile import read_yaml_text

    for key in ("patches", "patchesJson6902", "patchesStrategicMerge"):
        listed = document.get(key)
        for item in listed.items if listed is not None else ():
            patch = item.get("patch") if item.kind == "map" else item
            if patch is None:
                continue
            if patch.kind == "seq":
                read_json6902(out, patch)
            elif patch.kind == "scalar" and "\n" in patch.scalar:
                with embedded(out, "kubernetes"):
                    read_yaml_text(out, patch.text)
    generators = document.get("configMapGenerator")
    for item in generators.items if generators is not None else ():
        literals = item.get("literals")
        if literals is not None:
            entries, _ = environment(out, literals, "configMapGenerator")
            out.loose_env.extend(env_vars(out, entries))


def read_json6902(out: Collector, document: YNode) -> bool:
    """Read a list of ``{op, path, value}``: what it adds to arguments and environment, as one partial launch."""
    operations = [item for item in document.items if item.kind == "map" and item.get("op") and item.get("path")]
    if not operations or len(operations) != len(document.items):
        return False
    if out.reader == "yaml":
        out.reader = "kubernetes"
    words: list[Word] = []
    entries: list[tuple[str, int, Word, str]] = []
    for item in operations:
        path, value = item.string("path"), item.get("value")
        if value is None or item.string("op") not in ("add", "replace"):
            continue
        if "/args" in path or "/command" in path:
            words.extend([word_of_node(value)] if value.kind == "scalar" else words_of_node(value))
        elif "/env/" in path or path.endswith("/env"):
            block = value
            if value.kind == "map":
                block = YNode("seq", value.text, value.end)
                block.items = [value]
            if block.kind == "seq":
                more, _ = environment(out, block, "kubernetes env")
                entries.extend(more)
        elif "/containers" in path and value.kind in ("map", "seq"):
            from pytest_kvoffload.lint.sources.kubernetes import walk

            walk(out, value, (), {}, "kubernetes")
    first = out.location(document.at).line
    last = min(out.location(document.end).line, first + 80)
    around = Surroundings(
        source="kubernetes",
        env=env_vars(out, entries),
        words=tuple(dict.fromkeys(file_words(out) + comments_near(out, first, last))),
        limits=Limits(container=True, container_kind="kubernetes"),
        complete=False,
        env_complete=False,
    )
    _partial(out, words, entries, around, document)
    return True


def _partial(
    out: Collector, words: list[Word], entries: list[tuple[str, int, Word, str]], around: Surroundings, document: YNode
) -> None:
    from pytest_kvoffload.lint.sources.formats import trigger
    from pytest_kvoffload.lint.sources.kubernetes import run_script
    from pytest_kvoffload.lint.sources.shell_commands import shell_text

    script = shell_text(words)
    if script is None and len(words) == 1 and "\n" in words[0].text and trigger(words[0].text):
        script = words[0].value
    if script is not None:
        run_script(out, script, entries, around, "kubernetes")
        return
    found = find_program(words)
    if found:
        start, begin, product = found
        out.add_launch(build_launch(out, product, words[start], words[begin:], around))
    elif looks_like_vllm_arguments(words):
        out.add_launch(build_launch(out, "vllm", words[0], words, around))
    elif entries:
        out.loose_env.extend(around.env)
