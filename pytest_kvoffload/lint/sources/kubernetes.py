"""Kubernetes objects: every mapping that is a container, wherever a workload or a custom resource embeds it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pytest_kvoffload.lint.model import Launch, Limits, Mount, Quantity, Value
from pytest_kvoffload.lint.sources.argv import (
    Surroundings,
    build_launch,
    find_program,
    launch_from_image,
    looks_like_vllm_arguments,
)
from pytest_kvoffload.lint.sources.collect import Collector, Word, comments_near, file_words, quantity
from pytest_kvoffload.lint.sources.configs import json_config, yaml_configs
from pytest_kvoffload.lint.sources.formats import looks_like_lmcache, sniff, trigger
from pytest_kvoffload.lint.sources.shell import Script
from pytest_kvoffload.lint.sources.shell_commands import shell_text
from pytest_kvoffload.lint.sources.text import HOLE, Mapped, hole, join
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import env_vars, environment, seeded_state, word_of_node, words_of_node

Entries = list[tuple[str, int, Word, str]]
Ancestors = tuple[YNode, ...]


def read_objects(out: Collector, documents: Sequence[YNode], source: str = "kubernetes") -> None:
    """Read all objects of one file; ConfigMaps first, since containers refer to them."""
    objects = [item for document in documents for item in _objects(document)]
    maps: dict[str, YNode] = {}
    saved = out.files
    for item in objects:
        if item.string("kind") in ("ConfigMap", "Secret"):
            data = item.get("data") or item.get("stringData")
            if data is not None and data.kind == "map":
                maps[item.string("metadata", "name")] = data
                for key, value in data.members():
                    if value.kind == "scalar":
                        out.files = (*out.files, (key.scalar, value.text))
    used_before = len(out.launches)
    for item in objects:
        if item.string("kind") not in ("ConfigMap", "Secret"):
            walk(out, item, (), maps, source)
    used: set[object] = {c.location for launch in out.launches[used_before:] for c in launch.configs}
    taken: set[object] = {v.location for launch in out.launches[used_before:] for v in launch.env}
    for name, data in maps.items():
        config_map(out, name, data, used, taken)
    out.files = saved


def _objects(document: YNode, depth: int = 0) -> list[YNode]:
    """Look through ``kind: List``."""
    items = document.get("items")
    if document.string("kind").endswith("List") and items is not None and items.kind == "seq" and depth < 4:
        return [one for item in items.items for one in _objects(item, depth + 1)]
    return [document]


def config_map(out: Collector, name: str, data: YNode, used: set[object], taken: set[object]) -> None:
    """Keep what a ConfigMap holds: variables, LMCache YAML, kv-transfer JSON, scripts."""
    for key, value in data.members():
        if value.kind != "scalar":
            continue
        text = value.scalar
        if "\n" not in text.strip() and re.fullmatch(r"[A-Z][A-Z0-9_]*", key.scalar):
            entry = (key.scalar, value.at, word_of_node(value), "configmap")
            variable = env_vars(out, [entry])[0]
            if variable.location not in taken:
                out.loose_env.append(variable)
            continue
        if not trigger(text) and not looks_like_lmcache(text):
            continue
        if text.lstrip().startswith("{") and "kv_connector" in text:
            out.loose_configs.append(json_config(out, "kv-transfer-config", value.text))
        elif key.scalar.endswith((".yaml", ".yml")) or looks_like_lmcache(text):
            _yaml_data(out, key, value, used)
        elif sniff(key.scalar, text) in ("shell", "sbatch"):
            with embedded(out, "kubernetes"):
                script = Script(out, value.text, "shell")
                script.extra_words = [_said(out, name, key)]
                script.run(seeded_state([]))
        elif sniff(key.scalar, text) == "python":
            from pytest_kvoffload.lint.sources.python import read_python

            with embedded(out, "kubernetes"):
                read_python(out, value.text)


def _yaml_data(out: Collector, key: YNode, value: YNode, used: set[object]) -> None:
    from pytest_kvoffload.lint.sources.yamlfile import read_yaml_text

    if looks_like_lmcache(value.scalar):
        for config in yaml_configs(out, value.text, "lmcache-yaml"):
            if config.location not in used:
                out.loose_configs.append(config)
        return
    with embedded(out, "kubernetes"):
        read_yaml_text(out, value.text)


def _said(out: Collector, name: str, key: YNode) -> Value:
    return Value(text=f"{name} {key.scalar}", location=out.location(key.at), raw=key.scalar)


class embedded:  # noqa: N801  reads as a statement: `with embedded(out, "kubernetes")`
    """While it is open, launches are marked as embedded in the outer format."""

    def __init__(self, out: Collector, outer: str) -> None:
        self._out, self._outer = out, outer

    def __enter__(self) -> None:
        self._out.embedded.append(self._outer)

    def __exit__(self, *_: object) -> None:
        self._out.embedded.pop()


def walk(
    out: Collector, node: YNode, ancestors: Ancestors, maps: dict[str, YNode], source: str, depth: int = 0
) -> None:
    """Visit every node; read the mappings that are containers."""
    out.spend()
    if depth > 60:
        return
    if node.kind == "seq":
        for item in node.items:
            walk(out, item, ancestors, maps, source, depth + 1)
        return
    if node.kind == "scalar":
        return
    if is_container(node):
        container(out, node, ancestors, maps, source)
    for key, value in node.members():
        if key.scalar in ("args", "command", "env", "resources", "labels", "annotations", "status"):
            continue
        if value.kind == "scalar":
            if "\n" in value.scalar and trigger(value.scalar):
                inner_text(out, key, value, ancestors)
            continue
        walk(out, value, (*ancestors, node), maps, source, depth + 1)


def inner_text(out: Collector, key: YNode, value: YNode, ancestors: Ancestors) -> None:
    """A block scalar with a language of its own (``serveConfigV2``, ``patch``, a script)."""
    from pytest_kvoffload.lint.sources.yamlfile import read_yaml_text

    name = key.scalar
    with embedded(out, "kubernetes"):
        if name in ("serveConfigV2", "patch", "values", "valuesContent") or re.match(
            r"\s*(?:apiVersion|-\s+op|applications)\s*:", value.scalar
        ):
            read_yaml_text(out, value.text)
        elif re.search(r"(?i)script|run|command|startup|user-?data|setup|entrypoint|cmd", name):
            Script(out, value.text, "shell").run(seeded_state([]))


def is_container(node: YNode) -> bool:
    """Whether a mapping is a container (or a custom resource's own short form of one)."""
    command, args = node.get("command"), node.get("args")
    runs = any(n is not None and (n.kind == "seq" or (n.kind == "scalar" and n.scalar)) for n in (command, args))
    image = node.get("image")
    named = any(node.get(k) is not None for k in ("name", "env", "resources", "volumeMounts", "ports", "modelFormat"))
    if image is not None and (runs or named):
        return True
    return runs and named


def image_word(node: YNode) -> Word | None:
    """Return the image as one word: a string, or ``repository`` and ``tag``."""
    image = node.get("image")
    if image is None:
        return None
    if image.kind == "scalar":
        return word_of_node(image) if image.scalar else None
    repository, tag = image.get("repository"), image.get("tag")
    if repository is None or repository.kind != "scalar":
        return None
    registry = image.get("registry")
    parts = [repository.text]
    if registry is not None and registry.scalar:
        parts = [join([registry.text, repository.text], glue="/")]
    if tag is not None and tag.kind == "scalar" and tag.scalar:
        parts.append(tag.text)
    return Word(join(parts, glue=":"), repository.at, repository.end)


def container(out: Collector, node: YNode, ancestors: Ancestors, maps: dict[str, YNode], source: str) -> None:
    """Read one container to a launch, if it starts a server."""
    entries, complete = environment(out, node.get("env"), f"{source} env")
    from_maps, known = _env_from(node.get("envFrom"), maps, source)
    entries = [*from_maps, *entries]
    entries = [(n, at, replace(w, value=substituted(w.value, entries)), o) for n, at, w, o in entries]
    # vLLM's own example chart puts them under `image`.
    command = node.get("command") or node.get("image", "command")
    args = node.get("args") or node.get("image", "args")
    words = [replace(w, value=substituted(w.value, entries)) for w in [*words_of_node(command), *words_of_node(args)]]
    image = image_word(node)
    around = Surroundings(
        source=source,
        env=env_vars(out, entries),
        words=_words(out, node, ancestors),
        limits=limits(out, node, ancestors),
        image=out.of_word(image) if image else None,
        replicas=_replicas(ancestors),
        complete=not _templated(out, node, command, args),
        env_complete=complete and known,
        files=out.files,
    )
    script = shell_text(words)
    if script is not None:
        if trigger(script.text):
            run_script(out, script, entries, around, source)
        elif HOLE in script.text:
            out.add_unresolved(script.at, "the container's script is only known when it is rendered")
        return
    launch = _launch(out, image, words, around)
    if launch is not None:
        out.add_launch(launch)


def run_script(out: Collector, script: Mapped, entries: Entries, around: Surroundings, source: str) -> None:
    """Read a script that a container runs, in the container's surroundings."""
    inner = replace(around, env=())
    with out.inside(inner, around.image), embedded(out, source):
        shell = Script(out, script, "shell")
        shell.extra_words = list(around.words)
        shell.run(seeded_state(entries))


def _launch(out: Collector, image: Word | None, words: list[Word], around: Surroundings) -> Launch | None:
    found = find_program(words)
    if found:
        start, first, product = found
        return build_launch(out, product, words[start], words[first:], around)
    if image is not None:
        return launch_from_image(out, image, words, around) or _bare(out, words, around)
    return _bare(out, words, around)


def _bare(out: Collector, words: list[Word], around: Surroundings) -> Launch | None:
    """Only arguments, no program: a patch, or a resource whose operator adds the program."""
    if any(_SGLANG_FLAG.match(w.text) for w in words):
        return build_launch(out, "sglang", words[0], words, around)
    if words and not words[0].spread and looks_like_vllm_arguments(words):
        return build_launch(out, "vllm", words[0], words, around)
    return None


_SGLANG_FLAG = re.compile(r"^--(?:hicache-|enable-hierarchical-cache|mem-fraction-static|enable-lmcache)")


_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_]\w*)\)")


def substituted(text: Mapped, entries: Entries) -> Mapped:
    """Replace ``$(NAME)`` by the container's own variables, as Kubernetes does; ``$$`` is one dollar sign."""
    if "$" not in text.text or not _REFERENCE.search(text.text):
        return text
    values = {name: word.value for name, _, word, _ in entries}
    parts: list[Mapped] = []
    last = 0
    for match in _REFERENCE.finditer(text.text):
        parts.append(text[last : match.start()])
        name = match.group(1)
        if name is None:
            parts.append(text[match.start() : match.start() + 1])
            if match.string[match.end() : match.end() + 1] != "(":
                parts.append(text[match.start() + 1 : match.end()])
        elif name in values and "$(" not in values[name].text:
            parts.append(values[name])
        elif name not in values and _is_shell(text.text):
            parts.append(text[match.start() : match.end()])
        else:
            parts.append(hole(text.offset(match.start())))
        last = match.end()
    parts.append(text[last:])
    return join(parts, at=text.at)


def _is_shell(text: str) -> bool:
    """In a script, ``$(name)`` that names no variable is a command substitution."""
    return "\n" in text or "vllm serve" in text


def _env_from(node: YNode | None, maps: dict[str, YNode], source: str) -> tuple[Entries, bool]:
    entries: Entries = []
    complete = True
    if node is None or node.kind != "seq":
        return entries, node is None
    for item in node.items:
        name = item.string("configMapRef", "name") or item.string("secretRef", "name")
        prefix = item.string("prefix")
        data = maps.get(name)
        if data is None:
            complete = False
            continue
        for key, value in data.members():
            if value.kind == "scalar":
                entries.append((prefix + key.scalar, value.at, word_of_node(value), f"{source} envFrom"))
    return entries, complete


def _templated(out: Collector, node: YNode, command: YNode | None, args: YNode | None) -> bool:
    """Whether a template action may add arguments: one stands in the lines of ``command`` or ``args``."""
    for part in (command, args):
        if part is not None and part.kind == "seq" and part.items:
            start, stop = part.at, min(max(part.end, part.at), part.at + 20_000)
            if re.search(r"\{\{-?\s*(?:range|if|with|include|toYaml|tpl|template)|\{%", out.source.text[start:stop]):
                return True
    return False


def _words(out: Collector, node: YNode, ancestors: Ancestors) -> tuple[Value, ...]:
    first = out.location(node.at).line
    last = min(out.location(node.end).line, first + 80)
    words = file_words(out) + comments_near(out, first, last)
    names = [node.get("name")]
    for one in ancestors:
        names.extend(
            [one.get("metadata", "name"), one.get("metadata", "generateName"), one.get("metadata", "namespace")]
        )
        annotations = one.get("metadata", "annotations")
        if annotations is not None and annotations.kind == "map":
            names.extend(v for k, v in annotations.members() if "description" in k.scalar or "note" in k.scalar)
    for name in names:
        if name is not None and name.kind == "scalar" and name.scalar and HOLE not in name.scalar:
            words.append(Value(text=name.scalar[:400], location=out.location(name.at), raw=name.scalar[:400]))
    return tuple(dict.fromkeys(words))


def _replicas(ancestors: Ancestors) -> int:
    for one in reversed(ancestors):
        for path in (("replicas",), ("spec", "replicas"), ("minReplicas",)):
            node = one.get(*path)
            if node is not None and node.scalar.isdigit() and len(node.scalar) < 8:
                return int(node.scalar)
    return 1


def limits(out: Collector, node: YNode, ancestors: Ancestors) -> Limits:
    """Read memory limits, /dev/shm, and the volumes of a container."""
    memory = node.get("resources", "limits", "memory")
    request = node.get("resources", "requests", "memory")
    mounts: list[Mount] = []
    shm: Quantity | None = None
    volumes, claims, ipc = _volumes(ancestors)
    for item in (node.get("volumeMounts") or YNode("seq", Mapped("", (), 0))).items:
        path, name = item.string("mountPath"), item.string("name")
        if not path:
            continue
        mount = _mount(out, path, volumes.get(name), claims.get(name), item)
        mounts.append(mount)
        if path.rstrip("/") == "/dev/shm" and mount.size_limit is not None:
            shm = mount.size_limit
    return Limits(
        memory_limit=_quantity(out, memory),
        memory_request=_quantity(out, request),
        shm=shm,
        ipc_host=ipc,
        container=True,
        container_kind="kubernetes",
        mounts=tuple(mounts),
    )


def _quantity(out: Collector, node: YNode | None) -> Quantity | None:
    if node is None or node.kind != "scalar" or node.is_null:
        return None
    return quantity(out, node.text, "kubernetes")


def _volumes(ancestors: Ancestors) -> tuple[dict[str, YNode], dict[str, YNode], bool]:
    volumes: dict[str, YNode] = {}
    claims: dict[str, YNode] = {}
    ipc = False
    for one in ancestors:
        listed, templates = one.get("volumes"), one.get("volumeClaimTemplates")
        for item in listed.items if listed is not None else ():
            volumes[item.string("name")] = item
        for item in templates.items if templates is not None else ():
            claims[item.string("metadata", "name")] = item
        ipc = ipc or one.string("hostIPC") == "true"
    return volumes, claims, ipc


def _mount(out: Collector, path: str, volume: YNode | None, claim: YNode | None, item: YNode) -> Mount:
    location = out.location(item.at)
    if claim is not None:
        return Mount(mount_path=path, kind="pvc", location=location)
    if volume is None:
        return Mount(mount_path=path, kind="unknown", location=location)
    empty_dir = volume.get("emptyDir")
    if empty_dir is not None:
        kind = "emptyDir-memory" if empty_dir.string("medium") == "Memory" else "emptyDir"
        size = _quantity(out, empty_dir.get("sizeLimit"))
        return Mount(mount_path=path, kind=kind, location=location, size_limit=size)
    names = {"persistentVolumeClaim": "pvc", "hostPath": "hostPath", "nfs": "nfs", "configMap": "configMap",
             "secret": "secret", "ephemeral": "ephemeral", "csi": "csi"}  # fmt: skip
    for key, kind in names.items():
        if volume.get(key) is not None:
            shared = kind in ("pvc", "hostPath", "nfs", "csi")
            return Mount(mount_path=path, kind=kind, location=location, shared=shared)
    return Mount(mount_path=path, kind="unknown", location=location)
