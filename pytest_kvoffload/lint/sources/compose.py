"""docker-compose files: interpolation first, then words split with shlex, as Compose does."""

from __future__ import annotations

import re

from pytest_kvoffload.lint.model import Limits, Mount, Quantity, Value
from pytest_kvoffload.lint.sources.argv import Surroundings, build_launch, find_program, launch_from_image
from pytest_kvoffload.lint.sources.collect import Collector, comments_near, file_words, quantity
from pytest_kvoffload.lint.sources.formats import trigger
from pytest_kvoffload.lint.sources.kubernetes import run_script
from pytest_kvoffload.lint.sources.shell_commands import shell_text
from pytest_kvoffload.lint.sources.text import Mapped, hole, join
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import env_vars, environment, word_of_node, words_of_node

_VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-?+])((?:[^{}]|\{[^{}]*\})*))?\})")


def interpolated(text: Mapped) -> Mapped:
    """Apply Compose's interpolation: ``$$`` is a dollar, ``${A:-b}`` is b by default, ``$A`` is unknown."""
    if "$" not in text.text:
        return text
    parts: list[Mapped] = []
    last = 0
    defaulted = False
    for match in _VARIABLE.finditer(text.text):
        parts.append(text[last : match.start()])
        if match.group(1):
            parts.append(text[match.start() : match.start() + 1])
        elif match.group(4) in (":-", "-"):
            parts.append(interpolated(text[match.start(5) : match.end(5)]))
            defaulted = True
        else:
            parts.append(hole(text.offset(match.start())))
        last = match.end()
    parts.append(text[last:])
    result = join(parts, at=text.at)
    return Mapped(result.text, result.offsets, result.at, result.defaulted or defaulted)


def _interpolate(node: YNode | None, depth: int = 0) -> YNode | None:
    """Interpolate the short trees of a service (aliases below the third level are left as they are)."""
    if node is None or depth > 3:
        return node
    if node.kind == "scalar":
        text = interpolated(node.text)
        return node if text is node.text else YNode("scalar", text, node.end, node.tag, node.quoted, node.style)
    if node.kind == "seq":
        copy = YNode("seq", node.text, node.end, node.tag)
        copy.items = [n for item in node.items[:2000] if (n := _interpolate(item, depth + 1)) is not None]
        return copy
    copy = YNode("map", node.text, node.end, node.tag)
    copy.pairs = [(key, n) for key, value in node.members() if (n := _interpolate(value, depth + 1)) is not None]
    return copy


def read_compose(out: Collector, document: YNode) -> None:
    """Read every service."""
    services = document.get("services")
    if services is None or services.kind != "map":
        return
    files = []
    configs = document.get("configs")
    for key, value in configs.members() if configs is not None else ():
        content = value.get("content")
        if content is not None and content.kind == "scalar":
            files.append((key.scalar, interpolated(content.text)))
    out.files = (*out.files, *files)
    for name, service in services.members():
        if service.kind == "map":
            out.spend(20)
            _service(out, name, service)


def _service(out: Collector, name: YNode, service: YNode) -> None:
    image_node = _interpolate(service.get("image"))
    image = word_of_node(image_node) if image_node is not None and image_node.scalar else None
    entrypoint = words_of_node(_interpolate(service.get("entrypoint")))
    command = words_of_node(_interpolate(service.get("command")))
    entries, complete = environment(out, _interpolate(service.get("environment")), "compose environment")
    first = out.location(name.at).line
    last = min(out.location(service.end).line, first + 80)
    said = [Value(text=name.scalar, location=out.location(name.at), raw=name.scalar)]
    container_name = service.get("container_name")
    if container_name is not None and container_name.scalar:
        said.append(out.value(container_name.text))
    around = Surroundings(
        source="compose",
        env=env_vars(out, entries),
        words=tuple(dict.fromkeys(file_words(out) + comments_near(out, first, last) + said)),
        limits=_limits(out, service),
        image=out.of_word(image) if image else None,
        replicas=_replicas(service),
        env_complete=complete and service.get("env_file") is None,
        files=out.files,
    )
    words = [*entrypoint, *command]
    script = shell_text(words)
    if script is not None and trigger(script.text):
        run_script(out, script, entries, around, "compose")
        return
    if image is not None:
        launch = launch_from_image(out, image, command, around, entrypoint)
        if launch is not None:
            out.add_launch(launch)
            return
    found = find_program(words)
    if found:
        start, begin, product = found
        out.add_launch(build_launch(out, product, words[start], words[begin:], around))
    elif (
        service.get("build") is not None
        and command
        and command[0].text.startswith("-")
        and trigger(" ".join(w.text for w in command))
    ):
        out.add_launch(build_launch(out, "vllm", command[0], command, around))


def _replicas(service: YNode) -> int:
    text = service.string("deploy", "replicas") or service.string("scale")
    return int(text) if text.isdigit() and len(text) < 8 else 1


def _limits(out: Collector, service: YNode) -> Limits:
    memory = _size(out, service.get("mem_limit")) or _size(out, service.get("deploy", "resources", "limits", "memory"))
    request = _size(out, service.get("mem_reservation")) or _size(
        out, service.get("deploy", "resources", "reservations", "memory")
    )
    shm = _size(out, service.get("shm_size"))
    mounts: list[Mount] = []
    volumes = service.get("volumes")
    for item in volumes.items if volumes is not None else ():
        mount, size = _volume(out, item)
        if mount is not None:
            mounts.append(mount)
            if mount.mount_path == "/dev/shm" and size is not None:
                shm = size
    tmpfs = service.get("tmpfs")
    for item in tmpfs.items if tmpfs is not None and tmpfs.kind == "seq" else [tmpfs] if tmpfs is not None else []:
        path = item.scalar.partition(":")[0]
        if path:
            mounts.append(Mount(mount_path=path, kind="tmpfs", location=out.location(item.at)))
    return Limits(
        memory_limit=memory,
        memory_request=request,
        shm=shm,
        ipc_host=service.string("ipc") == "host",
        container=True,
        container_kind="compose",
        mounts=tuple(mounts),
        memlock_unlimited=_memlock(service.get("ulimits", "memlock")),
    )


def _memlock(node: YNode | None) -> bool | None:
    if node is None:
        return None
    values = [node.scalar] if node.kind == "scalar" else [node.string("soft"), node.string("hard")]
    return all(v in ("-1", "unlimited") for v in values if v)


def _size(out: Collector, node: YNode | None) -> Quantity | None:
    if node is None or node.kind != "scalar" or node.is_null:
        return None
    return quantity(out, interpolated(node.text), "docker")


def _volume(out: Collector, item: YNode) -> tuple[Mount | None, Quantity | None]:
    location = out.location(item.at)
    if item.kind == "scalar":
        text = re.sub(r"\$\{[^}]*\}", "/x", item.scalar)
        parts = text.split(":")
        if len(parts) < 2:
            return Mount(mount_path=parts[0], kind="volume", location=location), None
        bind = parts[0].startswith(("/", ".", "~", "$"))
        kind = "hostPath" if bind else "volume"
        return Mount(mount_path=parts[1], kind=kind, location=location, shared=bind), None
    kind = {"bind": "hostPath", "tmpfs": "tmpfs"}.get(item.string("type"), "volume")
    size = _size(out, item.get("tmpfs", "size"))
    path = item.string("target")
    return Mount(mount_path=path, kind=kind, location=location, size_limit=size, shared=kind == "hostPath"), size
