"""Helm values: vllm production-stack's model specs as what its chart runs, and other charts' argument lists.

What the chart does is read from its ``templates/deployment-vllm-multi.yaml`` (chart 0.1.12): see the table in
:func:`_chart_environment`. Chart variables come after the user's, so they win, as in the pod.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_kvoffload.lint.model import Config, Flag, Launch, Limits, Value
from pytest_kvoffload.lint.sources.argv import parse_arguments
from pytest_kvoffload.lint.sources.collect import Collector, Word, comments_near, file_words, quantity
from pytest_kvoffload.lint.sources.configs import launch_configs
from pytest_kvoffload.lint.sources.images import image_versions
from pytest_kvoffload.lint.sources.kubernetes import walk
from pytest_kvoffload.lint.sources.text import constant, join
from pytest_kvoffload.lint.sources.tree import from_yaml
from pytest_kvoffload.lint.sources.yamltree import YNode
from pytest_kvoffload.lint.sources.yamlwords import env_vars, environment, word_of_node, words_of_node

Entries = list[tuple[str, int, Word, str]]


@dataclass(slots=True)
class _Spec:
    """The parts of a model spec under the names of the chart or of the operator's resource."""

    node: YNode
    vllm: YNode | None
    lmcache: YNode | None
    env: YNode | None
    model: YNode | None
    image: Word | None
    memory_request: YNode | None
    memory_limit: YNode | None
    shm: YNode | None
    replicas: YNode | None
    name: YNode | None
    operator: bool = False
    words: list[Word] = field(default_factory=list)


def read_values(out: Collector, document: YNode) -> None:
    """Read ``servingEngineSpec.modelSpec[]`` of production-stack, and what else the values hold."""
    specs = document.get("servingEngineSpec", "modelSpec")
    for node in specs.items if specs is not None else ():
        if node.kind == "map":
            _model_spec(out, _chart_spec(node))
    for key, value in document.members():
        if key.scalar != "servingEngineSpec":
            walk(out, value, (document,), {}, "helm")


def read_runtime(out: Collector, document: YNode) -> None:
    """Read the operator's ``VLLMRuntime``."""
    spec = document.get("spec")
    if spec is None:
        return
    deployment = spec.get("deploymentConfig")
    resources = (deployment or spec).get("resources")
    image = (deployment or spec).get("image")
    one = _Spec(
        node=spec,
        vllm=spec.get("vllmConfig"),
        lmcache=spec.get("lmCacheConfig") or spec.get("lmcacheConfig"),
        env=spec.get("vllmConfig", "env") or spec.get("env"),
        model=spec.get("model", "modelURL") or spec.get("modelURL"),
        image=_image(image, "name", ""),
        memory_request=resources.get("memory") if resources is not None else None,
        memory_limit=None,
        shm=spec.get("shmSize"),
        replicas=(deployment or spec).get("replicas"),
        name=document.get("metadata", "name"),
        operator=True,
    )
    _model_spec(out, one)


def _chart_spec(node: YNode) -> _Spec:
    return _Spec(
        node=node,
        vllm=node.get("vllmConfig"),
        lmcache=node.get("lmcacheConfig"),
        env=node.get("env"),
        model=node.get("modelURL"),
        image=_image(node, "repository", "tag"),
        memory_request=node.get("requestMemory"),
        memory_limit=node.get("limitMemory"),
        shm=node.get("shmSize"),
        replicas=node.get("replicaCount"),
        name=node.get("name"),
    )


def _image(node: YNode | None, repository: str, tag: str) -> Word | None:
    name = node.get(repository) if node is not None else None
    if name is None or name.kind != "scalar" or not name.scalar:
        return None
    version = node.get(tag) if node is not None and tag else None
    if version is None or version.kind != "scalar" or not version.scalar:
        return word_of_node(name)
    return Word(join([name.text, version.text], glue=":"), name.at, name.end)


_VLLM_FLAGS = {
    "tensorParallelSize": "--tensor-parallel-size",
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "pipelineParallelSize": "--pipeline-parallel-size",
}
_SWITCHES = {
    "enablePrefixCaching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    "enableChunkedPrefill": ("--enable-chunked-prefill", "--no-enable-chunked-prefill"),
}


def _model_spec(out: Collector, spec: _Spec) -> None:
    out.spend(50)
    flags: list[Flag] = []
    complete = True
    configs: list[Config] = []
    own = from_yaml(out.source, spec.node)
    configs.append(Config(kind="helm-model-spec", node=own, location=own.location))
    if spec.vllm is not None and spec.vllm.kind == "map":
        flags.extend(_vllm_flags(out, spec.vllm))
    words = words_of_node(spec.vllm.get("extraArgs")) if spec.vllm is not None else []
    parsed = parse_arguments(out, words)
    flags.extend(parsed.flags)
    complete = parsed.complete
    entries, env_complete = environment(out, spec.env, "helm env")
    from_chart, transfer = _chart_environment(out, spec)
    around_env = env_vars(out, [*entries, *from_chart])
    if transfer is not None:
        flags.append(transfer[0])
        configs.append(transfer[1])
    surroundings_files = out.files
    from pytest_kvoffload.lint.sources.argv import Surroundings

    around = Surroundings(source="helm", env=around_env, files=surroundings_files)
    configs.extend(launch_configs(out, parsed.flags, words, around))
    image = out.of_word(spec.image) if spec.image else None
    vllm_version, lmcache_version = image_versions(image)
    out.add_launch(
        Launch(
            product="vllm",
            location=out.location(spec.node.at),
            source="helm",
            flags=tuple(flags),
            env=around_env,
            configs=tuple(configs),
            limits=Limits(
                memory_limit=quantity(out, spec.memory_limit.text, "kubernetes") if spec.memory_limit else None,
                memory_request=quantity(out, spec.memory_request.text, "kubernetes") if spec.memory_request else None,
                shm=quantity(out, spec.shm.text, "kubernetes") if spec.shm else None,
                container=True,
                container_kind="kubernetes",
            ),
            model=out.of_word(word_of_node(spec.model)) if spec.model is not None and spec.model.scalar else None,
            image=image,
            vllm_version=vllm_version or out.versions.get("vllm"),
            lmcache_version=lmcache_version or out.versions.get("lmcache"),
            replicas=_count(spec.replicas),
            words=_words(out, spec),
            complete=complete,
            env_complete=env_complete and spec.node.get("envFromSecret") is None,
        )
    )


def _count(node: YNode | None) -> int:
    return int(node.scalar) if node is not None and node.scalar.isdigit() and len(node.scalar) < 8 else 1


def _words(out: Collector, spec: _Spec) -> tuple[Value, ...]:
    first = out.location(spec.node.at).line
    last = out.location(spec.node.end).line
    words = file_words(out) + comments_near(out, first, min(last, first + 80))
    if spec.name is not None and spec.name.scalar:
        words.append(out.value(spec.name.text))
    return tuple(dict.fromkeys(words))


def _vllm_flags(out: Collector, vllm: YNode) -> list[Flag]:
    flags: list[Flag] = []
    for key, value in vllm.members():
        location = out.location(key.at)
        if key.scalar in _VLLM_FLAGS and value.kind == "scalar" and not value.is_null:
            content = out.of_word(word_of_node(value))
            flags.append(Flag(name=_VLLM_FLAGS[key.scalar], location=location, value=content))
        elif key.scalar in _SWITCHES and value.kind == "scalar":
            on, off = _SWITCHES[key.scalar]
            flags.append(Flag(name=on if value.scalar.lower() == "true" else off, location=location))
    return flags


def _chart_environment(out: Collector, spec: _Spec) -> tuple[Entries, tuple[Flag, Config] | None]:
    """Return the variables and the ``--kv-transfer-config`` that the chart adds for ``lmcacheConfig``.

    ==========================  =============================================================================
    enabled                     --kv-transfer-config LMCacheConnectorV1, LMCACHE_LOG_LEVEL
    cpuOffloadingBufferSize     only if ``int`` of it is above 0: LMCACHE_LOCAL_CPU=True, LMCACHE_MAX_LOCAL_CPU_SIZE
    diskOffloadingBufferSize    LMCACHE_MAX_LOCAL_DISK_SIZE and nothing else (the operator: LMCACHE_LOCAL_DISK too)
    vllmConfig present          PROMETHEUS_MULTIPROC_DIR=/tmp
    always                      PYTHONHASHSEED=123
    ==========================  =============================================================================
    """
    entries: Entries = []
    at = spec.node.at
    vllm, lmcache = spec.vllm, spec.lmcache
    if not spec.operator:
        _chart(entries, "PYTHONHASHSEED", "123", at)
    if vllm is not None:
        directory = vllm.get("prometheusMultiprocDir")
        if directory is not None and directory.scalar:
            entries.append(("PROMETHEUS_MULTIPROC_DIR", directory.at, word_of_node(directory), "helm chart"))
        else:
            _chart(entries, "PROMETHEUS_MULTIPROC_DIR", "/tmp", vllm.at)
    if lmcache is None or lmcache.kind != "map" or lmcache.string("enabled").lower() != "true":
        return entries, None
    _direct(entries, lmcache, "logLevel", "LMCACHE_LOG_LEVEL")
    if lmcache.get("enablePD") is not None:
        role = {"sender": "kv_producer", "receiver": "kv_consumer"}.get(lmcache.string("nixlRole"), "kv_both")
        _chart(entries, "LMCACHE_LOCAL_CPU", "False", lmcache.at)
        _chart(entries, "LMCACHE_MAX_LOCAL_CPU_SIZE", "0", lmcache.at)
    else:
        role = lmcache.string("kvRole") or "kv_both"
        _buffers(entries, lmcache, spec.operator)
    for key, name in _DIRECT.items():
        _direct(entries, lmcache, key, name)
    enabled = lmcache.get("enabled")
    place = enabled.at if enabled is not None else lmcache.at
    connector = "LMCacheConnector" if spec.vllm is not None and spec.vllm.string("v0") == "1" else "LMCacheConnectorV1"
    text = constant(f'{{"kv_connector":"{connector}","kv_role":"{role}"}}', place)
    from pytest_kvoffload.lint.sources.configs import json_config

    value = Value(text=text.text, location=out.location(place), raw=out.source.text[place : place + 4])
    flag = Flag(name="--kv-transfer-config", location=out.location(place), value=value)
    return entries, (flag, json_config(out, "kv-transfer-config", text))


_DIRECT = {
    "instanceId": "LMCACHE_LMCACHE_INSTANCE_ID",
    "enableController": "LMCACHE_ENABLE_CONTROLLER",
    "workerPorts": "LMCACHE_LMCACHE_WORKER_PORTS",
    "p2pHost": "LMCACHE_P2P_HOST",
    "p2pInitPorts": "LMCACHE_P2P_INIT_PORTS",
    "workerHeartbeatTime": "LMCACHE_LMCACHE_WORKER_HEARTBEAT_TIME",
}


def _buffers(entries: Entries, lmcache: YNode, operator: bool) -> None:
    size = lmcache.get("cpuOffloadingBufferSize")
    if size is not None and size.kind == "scalar" and _sprig_int(size) > 0:
        entries.append(("LMCACHE_LOCAL_CPU", size.at, Word(constant("True", size.at), size.at, size.end), "helm chart"))
        entries.append(("LMCACHE_MAX_LOCAL_CPU_SIZE", size.at, word_of_node(size), "helm chart"))
    disk = lmcache.get("diskOffloadingBufferSize")
    if disk is not None and disk.kind == "scalar" and disk.scalar:
        if operator:
            true = Word(constant("True", disk.at), disk.at, disk.end)
            entries.append(("LMCACHE_LOCAL_DISK", disk.at, true, "helm chart"))
        entries.append(("LMCACHE_MAX_LOCAL_DISK_SIZE", disk.at, word_of_node(disk), "helm chart"))


def _sprig_int(node: YNode) -> int:
    """sprig's ``int``: a whole number, anything else is 0 (``20Gi`` and ``0.5`` as strings are 0)."""
    text = node.scalar.strip()
    if node.tag.endswith(":float"):
        try:
            return int(float(text))
        except (ValueError, OverflowError):
            return 0
    return int(text) if text.lstrip("+-").isdigit() and len(text) < 19 else 0


def _chart(entries: Entries, name: str, text: str, at: int) -> None:
    entries.append((name, at, Word(constant(text, at), at, at), "helm chart"))


def _direct(entries: Entries, node: YNode, key: str, name: str) -> None:
    value = node.get(key)
    if value is not None and value.kind == "scalar" and value.scalar:
        entries.append((name, value.at, word_of_node(value), "helm chart"))


_ARGUMENT_KEYS = ("extraArgs", "extra_args", "vllmArgs", "engineArgs", "additionalArgs", "serverArgs", "args")


def read_other_values(out: Collector, document: YNode) -> None:
    """Read another chart's values: containers, argument lists, and scripts, wherever they stand."""
    from pytest_kvoffload.lint.sources.generic import read_commands

    before = len(out.launches)
    walk(out, document, (), {}, "helm")
    seen = {launch.location.line for launch in out.launches[before:]}
    _argument_lists(out, document, (), seen, 0)
    read_commands(out, document)


def _argument_lists(out: Collector, node: YNode, ancestors: tuple[YNode, ...], seen: set[int], depth: int) -> None:
    """A list of vLLM flags under a telling key, with no container around it."""
    from pytest_kvoffload.lint.sources.argv import Surroundings, build_launch, looks_like_vllm_arguments
    from pytest_kvoffload.lint.sources.kubernetes import image_word, limits

    out.spend()
    if depth > 40 or node.kind == "scalar":
        return
    if node.kind == "seq":
        for item in node.items:
            _argument_lists(out, item, ancestors, seen, depth + 1)
        return
    for key, value in node.members():
        lists = key.scalar in _ARGUMENT_KEYS and (value.kind == "seq" or "--" in value.scalar)
        if lists and not (key.scalar == "args" and _is_read(out, node, seen)):
            words = words_of_node(value)
            if words and looks_like_vllm_arguments(words):
                entries, complete = environment(out, node.get("env") or node.get("extraEnv"), "helm env")
                image = image_word(node) or next((w for a in reversed(ancestors) if (w := image_word(a))), None)
                first = out.location(node.at).line
                around = Surroundings(
                    source="helm",
                    env=env_vars(out, entries),
                    words=tuple(dict.fromkeys(file_words(out) + comments_near(out, first, first + 40))),
                    limits=limits(out, node, ancestors),
                    image=out.of_word(image) if image else None,
                    complete=False,
                    env_complete=complete,
                    files=out.files,
                )
                out.add_launch(build_launch(out, "vllm", words[0], words, around))
                continue
        _argument_lists(out, value, (*ancestors, node), seen, depth + 1)


def _is_read(out: Collector, node: YNode, seen: set[int]) -> bool:
    from pytest_kvoffload.lint.sources.kubernetes import is_container

    return is_container(node)
