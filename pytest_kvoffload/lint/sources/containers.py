"""``docker run``, ``podman run`` and ``kubectl run`` command lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_kvoffload.lint.model import EnvVar, Launch, Limits, Mount, Quantity
from pytest_kvoffload.lint.sources.argv import Surroundings, launch_from_image
from pytest_kvoffload.lint.sources.collect import Collector, Word, quantity
from pytest_kvoffload.lint.sources.shell_state import env_var
from pytest_kvoffload.lint.sources.text import HOLE

_SWITCHES = {
    "--detach", "--interactive", "--tty", "--rm", "--init", "--privileged", "--read-only", "--no-healthcheck",
    "--oom-kill-disable", "--publish-all", "--sig-proxy", "--disable-content-trust", "--quiet", "--replace",
    "--no-hosts", "--env-host", "--http-proxy", "--rmi",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """A ``docker run`` taken apart."""

    image: Word | None
    arguments: tuple[Word, ...]
    entrypoint: tuple[Word, ...]
    env: tuple[EnvVar, ...]
    limits: Limits
    env_complete: bool
    unknown: bool = False


def container_run(out: Collector, words: Sequence[Word], host: Sequence[EnvVar], kind: str) -> ContainerRun:
    """Take the words after ``docker run`` apart."""
    env: list[EnvVar] = []
    entrypoint: list[Word] = []
    mounts: list[Mount] = []
    memory: Quantity | None = None
    reservation: Quantity | None = None
    shm: Quantity | None = None
    ipc_host, env_complete, unknown = False, True, False
    memlock: bool | None = None
    index = 0
    image: Word | None = None
    while index < len(words):
        word = words[index]
        index += 1
        text = word.text
        if word.spread and (index >= len(words) or _still_options(words[index:])):
            unknown, env_complete = True, False
            continue
        if not text.startswith("-"):
            image = word
            break
        name, _, joined = text.partition("=")
        if name in _SWITCHES or re.fullmatch(r"-[dtiPq]+", name):
            continue
        if joined or "=" in text:
            value = Word(word.value[len(name) + 1 :], word.value.offset(len(name) + 1), word.end, quoted=word.quoted)
        elif re.match(r"^-[evpmuwlh]\S", text):
            name, value = text[:2], Word(word.value[2:], word.value.offset(2), word.end, quoted=word.quoted)
        elif index < len(words):
            value = words[index]
            index += 1
        else:
            break
        if name in ("-e", "--env"):
            _env(out, value, host, env, f"{kind} -e")
        elif name == "--env-file":
            env_complete = False
        elif name == "--shm-size":
            shm = quantity(out, value.value, "docker")
        elif name in ("--ipc",):
            ipc_host = value.text == "host"
        elif name in ("-m", "--memory"):
            memory = quantity(out, value.value, "docker")
        elif name == "--memory-reservation":
            reservation = quantity(out, value.value, "docker")
        elif name == "--ulimit" and value.text.startswith("memlock"):
            memlock = "-1" in value.text or "unlimited" in value.text
        elif name in ("-v", "--volume"):
            mount = _bind(out, value)
            mounts.extend([mount] if mount else [])
        elif name in ("--mount", "--tmpfs"):
            mount, size = _mount(out, name, value)
            mounts.extend([mount] if mount else [])
            if mount and mount.mount_path == "/dev/shm" and size is not None:
                shm = size
        elif name == "--entrypoint" and value.text:
            entrypoint = [value]
    limits = Limits(
        memory_limit=memory,
        memory_request=reservation,
        shm=shm,
        ipc_host=ipc_host or any(m.mount_path == "/dev/shm" and m.kind == "hostPath" for m in mounts),
        container=True,
        container_kind=kind,
        mounts=tuple(mounts),
        memlock_unlimited=memlock,
    )
    return ContainerRun(image, tuple(words[index:]), tuple(entrypoint), tuple(env), limits, env_complete, unknown)


def _still_options(words: Sequence[Word]) -> bool:
    """Whether an image may still follow: `docker run $OPTS image --flag`, not `docker run --rm $IMAGE --flag`."""
    return (
        any(not w.text.startswith("-") and re.search(r"[/:]|vllm|lmcache|sglang", w.text) for w in words[:1])
        or (bool(words) and words[0].spread)
        or (
            bool(words)
            and words[0].text
            in ("-e", "-v", "-p", "--env", "--shm-size", "--ipc", "--name", "--gpus", "--ipc=host", "--network")
        )
    )


def _env(out: Collector, word: Word, host: Sequence[EnvVar], env: list[EnvVar], origin: str) -> None:
    name, equals, _ = word.text.partition("=")
    if HOLE in name or not name:
        return
    if equals:
        value = word.value[len(name) + 1 :]
        env.append(env_var(out, name, word.start, Word(value, value.at, word.end, quoted=word.quoted), origin))
        return
    handed = [v for v in host if v.name == name and v.reaches]
    if handed:
        env.append(replace(handed[-1], origin=origin))


def _bind(out: Collector, word: Word) -> Mount | None:
    parts = word.text.split(":")
    if len(parts) < 2:
        return Mount(mount_path=word.text, kind="volume", location=out.location(word.start))
    kind = "hostPath" if parts[0].startswith(("/", ".", "~", "$", HOLE)) else "volume"
    return Mount(mount_path=parts[1], kind=kind, location=out.location(word.start), shared=kind == "hostPath")


def _mount(out: Collector, name: str, word: Word) -> tuple[Mount | None, Quantity | None]:
    size: Quantity | None = None
    options: dict[str, str] = {}
    position = 0
    text = word.text
    if name == "--tmpfs":
        path, _, rest = text.partition(":")
        options = {"dst": path, "type": "tmpfs"}
        position, text = len(path) + 1, rest
    for part in text.split(","):
        key, _, value = part.partition("=")
        options.setdefault(key, value)
        if key in ("tmpfs-size", "size"):
            start = position + len(key) + 1
            size = quantity(out, word.value[start : start + len(value)], "docker")
        position += len(part) + 1
    path = options.get("dst") or options.get("target") or options.get("destination") or ""
    if not path:
        return None, None
    kinds = {"tmpfs": "tmpfs", "bind": "hostPath", "volume": "volume"}
    kind = kinds.get(options.get("type", ""), "volume")
    location = out.location(word.start)
    return Mount(mount_path=path, kind=kind, location=location, size_limit=size, shared=kind == "hostPath"), size


def kubectl_run(out: Collector, words: Sequence[Word], around: Surroundings) -> Launch | None:
    """``kubectl run NAME --image=IMAGE --env=A=b -- args``."""
    image: Word | None = None
    env: list[EnvVar] = []
    index, command = 0, False
    arguments: Sequence[Word] = ()
    while index < len(words):
        word = words[index]
        index += 1
        if word.text == "--":
            arguments = words[index:]
            break
        name, equals, _ = word.text.partition("=")
        if not name.startswith("-"):
            continue
        if name == "--command":
            command = True
            continue
        if equals:
            value = Word(word.value[len(name) + 1 :], word.value.offset(len(name) + 1), word.end)
        elif index < len(words) and name in ("--image", "--env", "-n", "--namespace", "--overrides", "--restart"):
            value = words[index]
            index += 1
        else:
            continue
        if name == "--image":
            image = value
        elif name == "--env":
            _env(out, value, (), env, "kubectl run --env")
    if image is None:
        return None
    limits = Limits(container=True, container_kind="kubernetes")
    outside = tuple(replace(v, reaches=False) for v in around.env)
    around = replace(around, env=(*outside, *env), limits=limits)
    if command:
        return launch_from_image(out, image, arguments[1:], around, arguments[:1])
    return launch_from_image(out, image, arguments, around)
